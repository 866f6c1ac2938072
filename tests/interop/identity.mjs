// An agent's identity in JavaScript, from section 16 of docs/protocol.md and Node's own cryptography: makes the proofs of the
// vectors again, and enrols and proves as an agent does. Prints one line of JSON.
//
//   node identity.mjs vectors identity.json
//   node identity.mjs thumbprint SEED
//   node identity.mjs enrolment SEED TOKEN AGENT
//   node identity.mjs link SEED NONCE AGENT CREDENTIAL [SESSION]

import { createHash, createPrivateKey, createPublicKey, sign, verify } from "node:crypto";
import { readFileSync } from "node:fs";

const DER_PRIVATE = Buffer.from("302e020100300506032b657004220420", "hex"); // PKCS #8 of Ed25519, before the seed

const secretOf = (seed) => createPrivateKey({ key: Buffer.concat([DER_PRIVATE, Buffer.from(seed, "hex")]), format: "der", type: "pkcs8" });
const publicOf = (seed) => createPublicKey(secretOf(seed)).export({ format: "jwk" }).x;
const digest = (text) => createHash("sha256").update(text).digest("hex");
const thumbprint = (x) => createHash("sha256").update(`{"crv":"Ed25519","kty":"OKP","x":"${x}"}`).digest("base64url");
const prove = (seed, lines) => sign(null, Buffer.from(lines.join("\n")), secretOf(seed)).toString("base64url");

const statements = {
  enrolment: (seed, { token_id, agent }) => ["fairlead-enrolment-v1", token_id, agent, thumbprint(publicOf(seed))],
  renewal: (_, { agent, credential }) => ["fairlead-renewal-v1", agent, digest(credential)],
  link: (_, { nonce, agent, credential, session }) => ["fairlead-link-v1", nonce, agent, digest(credential), session || "-"],
};

function vectors(file) {
  const { seed, public: x, thumbprint: expected, proofs } = JSON.parse(readFileSync(file, "utf8"));
  const wrong = proofs.filter((given) => {
    const lines = statements[given.proof](seed, given);
    return lines.join("\n") !== given.signed || prove(seed, lines) !== given.signature ||
      !verify(null, Buffer.from(given.signed), createPublicKey(secretOf(seed)), Buffer.from(given.signature, "base64url"));
  });
  return { agreed: proofs.length - wrong.length, wrong, key: publicOf(seed) === x && thumbprint(x) === expected };
}

function enrolment(seed, token, agent) {
  const lines = statements.enrolment(seed, { token_id: token.split("_")[2], agent });
  return { token, agent, key: publicOf(seed), proof: prove(seed, lines) };
}

const [what, ...given] = process.argv.slice(2);
const made = {
  vectors,
  thumbprint: (seed) => thumbprint(publicOf(seed)),
  enrolment,
  link: (seed, nonce, agent, credential, session) => prove(seed, statements.link(seed, { nonce, agent, credential, session })),
}[what](...given);
console.log(JSON.stringify(made));
