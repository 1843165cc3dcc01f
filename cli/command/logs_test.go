package command

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestLogsAreSafeForTerminals(t *testing.T) {
	var out bytes.Buffer
	require.NoError(t, copyLines(&out, strings.NewReader("first\n\x1b]0;title\x07second\r\n\nlast")))
	assert.Equal(t, "first\n�]0;title�second\n\nlast\n", out.String())

	out.Reset()
	require.NoError(t, copyLines(&out, strings.NewReader(strings.Repeat("x", 10*maxLogLineBytes)+"\nnext\n")))
	lines := strings.Split(out.String(), "\n")
	require.Len(t, lines, 3)
	assert.Equal(t, strings.Repeat("x", maxLogLineBytes)+" …", lines[0])
	assert.Equal(t, "next", lines[1])
}
