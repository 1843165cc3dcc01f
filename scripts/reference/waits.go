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

// renderWaits renders what the agent knows of the layers below an image.
func renderWaits() (string, error) {
	var rows [][]string
	for _, row := range importcause.Rows() {
		if row.Kind == importcause.Normal {
			continue
		}
		said := "anything else"
		switch {
		case len(row.Codes) > 0:
			said = "`" + strings.Join(row.Codes, "`, `") + "`"
		case row.Text != nil:
			said = "a text of a known kind"
		}
		rows = append(rows, []string{string(row.Layer), said, "`" + string(row.Reason) + "`", kindTexts[row.Kind], row.Advice})
	}
	return table([]string{"Who says it", "What is said", "Reason of the image", "A person has to act", "Advice"}, rows), nil
}
