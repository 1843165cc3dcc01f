package web

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pelotech/ot-fleet/api/readapi"
)

// The reference page has each path, its parameters, and only topics that there are.
func TestPageHasEveryPath(t *testing.T) {
	text, err := os.ReadFile("../../docs/reference/readapi.md")
	require.NoError(t, err)
	rows := map[string][]string{}
	for line := range strings.Lines(string(text)) {
		if cells := strings.Split(line, "|"); len(cells) == 5 && strings.HasPrefix(line, "| `") {
			rows[strings.Trim(cells[1], " `")] = cells
		}
	}
	paths := newTestAPI(true).endpoints()
	paths[root+"events"] = endpoint{}
	for path, e := range paths {
		row := rows[strings.TrimPrefix(path, root)]
		require.NotNil(t, row, path)
		for _, parameter := range e.parameters {
			assert.Contains(t, row[2], "`"+parameter+"`", path)
		}
		delete(rows, strings.TrimPrefix(path, root))
	}
	assert.Empty(t, rows, "the API has no such paths")
	for _, topic := range readapi.Topics() {
		assert.Contains(t, string(text), "`"+string(topic)+"`")
	}
}
