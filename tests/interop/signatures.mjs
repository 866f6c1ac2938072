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

// Of a run: what its key signs follows from the octets of any of its commands and the path in `sig`.
function rootOf(octets, path) {
  let node = sha256(Buffer.concat([Buffer.from([0]), octets]));
  for (let at = 0; at < path.length; at += 33) {
    const neighbour = path.subarray(at + 1, at + 33);
    node = sha256(Buffer.concat([Buffer.from([1]), ...(path[at] === 1 ? [node, neighbour] : [neighbour, node])]));
  }
  return node;
}

function ofRun(terms, keyId, { agent, id, sig }) {
  const octets = encode("fairlead.command.v1", keyId, agent, id, terms.method, sha256(hex(terms.payload)), terms.lane, terms.retry,
    terms.input, terms.issued, terms.expires);
  return encode("fairlead.run.v1", keyId, rootOf(octets, hex(sig).subarray(98)));
}

function crc32(text) { // Node has had one since version 20.15
  let crc = -1;
  for (const octet of Buffer.from(text)) {
    crc ^= octet;
    for (let bit = 0; bit < 8; bit += 1) crc = (crc >>> 1) ^ (crc & 1 ? 0xedb88320 : 0);
  }
  return ~crc >>> 0;
}

function targetId(run, agent) {
  const digits = sha256(Buffer.from(`${run} ${agent}`)).toString("hex");
  const shard = (Number.parseInt(digits.slice(14, 16), 16) & 0xc0) | (crc32(agent) % 64);
  const variant = ((Number.parseInt(digits[16], 16) & 3) | 8).toString(16);
  return `${digits.slice(0, 8)}-${digits.slice(8, 12)}-8${digits[13]}${shard.toString(16).padStart(2, "0")}-` +
    `${variant}${digits.slice(17, 20)}-${digits.slice(20, 32)}`;
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
    run: () => ofRun(terms, keyId, vector.commands[0]),
    keys: () => encode("fairlead.keys.v1", keyId, terms.agents, terms.sequence, Buffer.concat(terms.keys.map(hex))),
  }[vector.kind]();
  const signature = sign(null, octets, secret);
  const [travels, received, carried] = {
    command: () => {
      const head = Buffer.from([1, terms.input === "signed" ? 1 : 0]);
      const sig = hex(vector.sig);
      return [Buffer.concat([head, keyId, integer(terms.issued), integer(terms.expires), signature]), sig, sig.subarray(34)];
    },
    run: () => {
      const sig = hex(vector.signature);
      const made = Buffer.concat([Buffer.from([2, 0]), keyId, integer(terms.issued), integer(terms.expires), signature]);
      const whole = vector.commands.every((one) => ofRun(terms, keyId, one).equals(octets) && one.id === targetId(terms.run, one.agent) &&
        hex(one.sig).subarray(0, 98).equals(sig));
      return [made, whole ? sig : Buffer.alloc(0), sig.subarray(34)];
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
