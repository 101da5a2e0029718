// validate.mjs MODULES FILE...: checks Kubernetes objects (JSON, one list a
// file) against the schemas of the npm package kubernetes-models in the folder
// MODULES. Custom resources, which have no schema there, are counted apart.
import { readFileSync } from "node:fs";
import { resolve } from "node:path";
import { pathToFileURL } from "node:url";

const [modules, ...files] = process.argv.slice(2);
const root = pathToFileURL(`${resolve(modules)}/kubernetes-models/`);
let checked = 0, custom = 0, wrong = 0;
for (const list of files) {
  for (const object of JSON.parse(readFileSync(list, "utf8"))) {
    const where = `${list}: ${object.kind} ${object.metadata?.name}`;
    let Model;
    try {
      const file = new URL(`${object.apiVersion}/${object.kind}.js`, root);
      Model = (await import(file))[object.kind];
    } catch {
      // Groups of Kubernetes itself have no dot or end in k8s.io.
      const [group, version] = object.apiVersion.split("/");
      if (!version || !group.includes(".") || group.endsWith("k8s.io")) {
        console.error(`${where}: no schema for ${object.apiVersion}`);
        wrong++;
      }
      custom++;
      continue;
    }
    try {
      new Model(object).validate();
      checked++;
    } catch (error) {
      console.error(`${where}: ${error.message}`);
      wrong++;
    }
  }
}
console.log(`${checked} objects match their schemas, ${custom} custom resources`);
process.exit(wrong ? 1 : 0);
