package main

import (
	"strings"

	"github.com/pelotech/ot-fleet/agent/importcause"
)

var kindTexts = map[importcause.Kind]string{
	importcause.Passing:     "if it lasts",
	importcause.Heals:       "no",
	importcause.NeedsPerson: "yes",
}

// describeSignal returns what the layer says for a row to match, after the rows above it.
func describeSignal(row importcause.Row) string {
	codes, text := "`"+strings.Join(row.Codes, "`, `")+"`", "the text "+row.TextMeans
	switch {
	case len(row.Codes) == 0 && row.Text == nil:
		return "anything else"
	case len(row.Codes) == 0:
		return text
	case row.Text == nil:
		return codes
	default:
		return codes + ", and " + text
	}
}

// renderWaits renders what the agent knows of the layers below an image.
func renderWaits() (string, error) {
	var rows [][]string
	for _, row := range importcause.Rows() {
		if row.Kind == importcause.Normal {
			continue
		}
		rows = append(rows, []string{string(row.Layer), describeSignal(row), "`" + string(row.Reason) + "`", kindTexts[row.Kind], row.Advice})
	}
	return table([]string{"Who says it", "What is said", "Reason of the image", "A person has to act", "Advice"}, rows), nil
}
