// The delivery as a Node.js program, with Node's own fetch.
// Run by agent-v0: env_config: {program: "node PATH/with_node.mjs", models: [planner, worker]}
import { readFileSync } from "node:fs";

const { OPENAI_BASE_URL, OPENAI_API_KEY } = process.env;
const task = JSON.parse(readFileSync(0, "utf8"));
const doors = task.doors.join(" ");

async function ask(model, prompt) {
  const answer = await fetch(`${OPENAI_BASE_URL}/chat/completions`, {
    method: "POST",
    headers: {
      Authorization: `Bearer ${OPENAI_API_KEY}`,
      "Content-Type": "application/json",
    },
    body: JSON.stringify({ model, messages: [{ role: "user", content: prompt }] }),
  });
  const body = await answer.json();
  if (!answer.ok) throw new Error(body.error.message);
  return body.choices[0].message.content;
}

const plan = await ask("planner", `Goods: ${task.goods}. Doors: ${doors}. Say one.`);
const walk = await ask("worker", `planner says ${plan}. Doors: ${doors}. Walk to one.`);
const reward = walk.split(/[^a-z]+/i).includes(task.goods) ? 1 : 0;
console.log(JSON.stringify({ reward, success: reward === 1, metrics: { words: walk.length } }));
