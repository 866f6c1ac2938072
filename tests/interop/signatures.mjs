// Signed commands in JavaScript, from section 15 of docs/protocol.md and Node's own cryptography: verifies the vectors, and signs
// them again. Prints one line of JSON: how many agreed, and the names of those that did not.

import { createHash, createPrivateKey, createPublicKey, sign, verify } from "node:crypto";
import { readFileSync } from "node:fs";

const DER_PRIVATE = Buffer.from("302e020100300506032b657004220420", "hex"); // PKCS #8 of Ed25519, before the seed
const DER_PUBLIC = Buffer.from("302a300506032b6570032100", "hex");
const hex = (text) => Buffer.from(text, "hex");
const integer = (value) => { const octets = Buffer.alloc(8); octets.writeBigUInt64BE(BigInt(value)); return octets; };
const sha256 = (octets) => createHash("sha256").update(octets).digest();

function openSsh(key) {
  const octets = encode("ssh-ed25519", hex(key)); // lengths and octets, as OpenSSH has them
  return `ssh-ed25519 ${octets.toString("base64")}`;
}

function encode(...fields) {
  return Buffer.concat(fields.flatMap((field) => {
    const octets = Buffer.isBuffer(field) ? field : typeof field === "number" ? integer(field) : Buffer.from(field);
    const length = Buffer.alloc(4);
    length.writeUInt32BE(octets.length);
    return [length, octets];
  }));
}

function agrees(vector) {
  const { terms } = vector;
  const secret = createPrivateKey({ key: Buffer.concat([DER_PRIVATE, hex(vector.seed)]), format: "der", type: "pkcs8" });
  const open = createPublicKey({ key: Buffer.concat([DER_PUBLIC, hex(vector.public)]), format: "der", type: "spki" });
  const keyId = sha256(hex(vector.public)).subarray(0, 16);
  const octets = {
    command: () => encode("fairlead.command.v1", keyId, terms.agent, terms.id, terms.method, sha256(hex(terms.payload)), terms.lane,
      terms.retry, terms.input, terms.issued, terms.expires),
    input: () => encode("fairlead.input.v1", keyId, terms.agent, terms.id, terms.n, terms.last ? 1 : 0, sha256(hex(terms.data))),
    keys: () => encode("fairlead.keys.v1", keyId, terms.agents, terms.sequence, Buffer.concat(terms.keys.map(hex))),
  }[vector.kind]();
  const signature = sign(null, octets, secret);
  const [travels, received, carried] = {
    command: () => {
      const head = Buffer.from([1, terms.input === "signed" ? 1 : 0]);
      const sig = hex(vector.sig);
      return [Buffer.concat([head, keyId, integer(terms.issued), integer(terms.expires), signature]), sig, sig.subarray(34)];
    },
    input: () => {
      const payload = hex(vector.payload);
      return [Buffer.concat([Buffer.from([terms.last ? 1 : 0]), signature, hex(terms.data)]), payload, payload.subarray(1, 65)];
    },
    keys: () => {
      const { statement } = vector;
      const made = { ...terms, keys: terms.keys.map(openSsh), key_id: keyId.toString("hex"), signature: signature.toString("base64") };
      return [Buffer.from(JSON.stringify(made)), Buffer.from(JSON.stringify(statement)), Buffer.from(statement.signature, "base64")];
    },
  }[vector.kind]();
  const changed = Buffer.from(octets);
  changed[changed.length - 1] ^= 1;
  return octets.equals(hex(vector.signed)) && travels.equals(received) && keyId.equals(hex(vector.key_id)) &&
    verify(null, octets, open, carried) && !verify(null, changed, open, carried);
}

const vectors = JSON.parse(readFileSync(process.argv[2], "utf8"));
const wrong = vectors.filter((vector) => !agrees(vector)).map((vector) => vector.name);
console.log(JSON.stringify({ agreed: vectors.length - wrong.length, wrong }));
