#!/bin/sh
# The delivery as a shell script. It needs curl, and sed for the two fields that it reads.
# Run by agent-v0: env_config: {program: "sh PATH/with_curl.sh", models: [planner, worker]}
set -eu

task=$(cat)
doors=$(printf '%s' "$task" | sed -n 's/.*"doors": \[\([^]]*\)\].*/\1/p' | tr -d '",')
goods=$(printf '%s' "$task" | sed -n 's/.*"goods": "\([^"]*\)".*/\1/p')

# Prints the words of letters in the reply of model $1 to the prompt $2.
ask() {
  printf '{"model": "%s", "messages": [{"role": "user", "content": "%s"}]}' "$1" "$2" |
    curl -sS --fail-with-body --max-time 600 "$OPENAI_BASE_URL/chat/completions" \
      -H "Authorization: Bearer $OPENAI_API_KEY" -H "Content-Type: application/json" -d @- |
    sed -n 's/.*"content": "\(\([^"\\]\|\\.\)*\)".*/\1/p' | tr -c 'A-Za-z\n' ' '
}

plan=$(ask planner "Goods: $goods. Doors: $doors. Say one.")
walk=$(ask worker "planner says $plan. Doors: $doors. Walk to one.")
case " $walk " in
  *" $goods "*) echo 1.0 ;;
  *) echo 0.0 ;;
esac
