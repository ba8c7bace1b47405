// Builds static/page.js and static/page.css from source/. Both begin with a hash of all sources, so that a test can tell
// without node whether they were built from the sources that stand beside them.
import { createHash } from "node:crypto";
import { readFileSync, readdirSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const folder = dirname(fileURLToPath(import.meta.url));

/** sha256 over name and content of every source, by name; tests/serve/test_page_bundle.py computes the same. */
function sourceHash() {
  const hash = createHash("sha256");
  for (const name of readdirSync(join(folder, "source")).sort()) {
    hash.update(`${name}\n`);
    hash.update(readFileSync(join(folder, "source", name)));
  }
  return hash.digest("hex");
}

const banner = `/* built from source/ by "npm run build"; sources sha256 ${sourceHash()} */`;

await build({
  absWorkingDir: folder,
  entryPoints: { page: "source/main.ts" },
  outdir: process.argv[2] ?? "static",
  bundle: true,
  minify: true,
  format: "iife",
  target: "es2022",
  charset: "utf8",
  legalComments: "none",
  banner: { js: banner },
});
await build({
  absWorkingDir: folder,
  entryPoints: { page: "source/page.css" },
  outdir: process.argv[2] ?? "static",
  bundle: true,
  minify: true,
  target: ["chrome115", "firefox115", "safari16.4"],
  charset: "utf8",
  banner: { css: banner },
});
