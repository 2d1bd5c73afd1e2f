// What is on the screen as a command or a program that gives the same.

import { toBase64 } from "./picture.js";
import { filesOf } from "./share.js";
import { hasKey } from "./transport.js";

const URL_HERE = () => location.href.split(/[#?]/)[0].replace(/\/$/, "");

/** A shell command with curl. */
export async function asCurl(state) {
  const key = hasKey() ? ` -H "X-API-Key: $CAPSNET_API_KEY"` : "";
  const { model } = state;
  if (moved(state)) {
    const body = JSON.stringify({ model: model.name, version: model.version, ...decodedPose(state) });
    const headers = "-H 'Content-Type: application/json' -H 'Accept: image/png'";
    return `curl${key} ${headers} -d ${quoted(body)} ${quoted(`${URL_HERE()}/reconstruct`)} -o capsule.png`;
  }
  const url = quoted(`${URL_HERE()}/${route(state)}?model=${encodeURIComponent(model.name)}&version=${model.version}`);
  const own = ownFiles(state);
  if (own) return `curl${key} ${own.map((file) => `-F images=@${quoted(toPart(file.name))}`).join(" ")} ${url}`;
  const [first, second] = await seen(state);
  if (!second) return `echo ${first} | base64 -d | curl${key} --data-binary @- ${url}`;
  const decoded = [first, second].map((view, index) => `echo ${view} | base64 -d > view${index}.png`);
  return `${decoded.join("\n")}\ncurl${key} -F images=@view0.png -F images=@view1.png ${url}`;
}

/** A Python program with this project's client. */
export async function asPython(state) {
  const { model } = state;
  const key = hasKey() ? `, api_key=os.environ["CAPSNET_API_KEY"]` : "";
  const which = `model=${text(model.name)}, version=${model.version}`;
  const [imports, lines] = moved(state) ? decoding(state, which) : await asking(state, which);
  const head = [...(hasKey() ? ["import os"] : []), ...imports].join("\n");
  return `${head}\n\nwith Client(${text(URL_HERE())}${key}) as client:\n${lines.map((line) => `    ${line}`).join("\n")}\n`;
}

function decoding(state, which) {
  const { pose, label } = decodedPose(state);
  return [
    ["from PIL import Image", "", "from capsnet import Client"],
    [
      `pose = [${pose.join(", ")}]`,
      `made = client.reconstruct(pose=pose, label=${text(label)}, ${which})`,
      `Image.fromarray(made.reconstructions[0].picture.squeeze()).save("capsule.png")`,
    ],
  ];
}

async function asking(state, which) {
  const own = ownFiles(state);
  const views = own ? own.map((file) => text(file.name)) : (await seen(state)).map((view) => `b64decode(${text(view)})`);
  const isPair = views.length > 1;
  const imports = [...(own ? [] : ["from base64 import b64decode", ""]), `from capsnet import Client${isPair ? ", Pair" : ""}`];
  const picture = isPair ? `Pair(${views.join(", ")})` : views[0];
  const found = route(state) === "segment" ? "objects" : "classes[:3]";
  return [
    imports,
    [
      `answer = client.${route(state)}(${picture}, ${which})`,
      `for one in answer.results[0].${found}:`,
      `    print(one.label, one.probability)`,
    ],
  ];
}

const moved = ({ objects }) => objects.some(({ moves }) => moves.some((move) => move !== 0));
const route = ({ model }) => (model.manifest.objects_per_image > 1 && model.manifest.graphs.decoder ? "segment" : "classify");
const quoted = (argument) => `'${argument.replaceAll("'", `'\\''`)}'`;
// curl takes what follows a comma or a semicolon for another file, or for its type.
const toPart = (name) => (/[,;"\\]/.test(name) ? `"${name.replace(/["\\]/g, "\\$&")}"` : name);
const text = (value) => JSON.stringify(value);

function decodedPose({ objects, chosen }) {
  const { pose, label } = objects[chosen];
  return { pose: pose.map((value) => Number(value.toFixed(5))), label };
}

/** The user's own files, if that is what was sent. */
function ownFiles({ answer }) {
  return answer.files.every(({ name }) => name) ? answer.files : null;
}

/** What the network sees, as base64 files: much smaller than the drawing, and answered alike. */
async function seen({ answer, model }) {
  return Promise.all((await filesOf(answer.result.model_input, model.manifest.views)).map(toBase64));
}
