package render_test

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/pelotech/ot-fleet/api/shellword"
	"github.com/pelotech/ot-fleet/cli/render"
)

func TestCommandsInMarkdown(t *testing.T) {
	page := &render.Page{}
	table := page.Table(render.Column{Title: "A"})
	for _, name := range []string{"plain", "a`; reboot #", "a|b", "a``b"} {
		table.Command(shellword.FormatCommand("kubectl ot why image %s", name))
	}
	text := render.Markdown(page, render.Completion{})
	for _, want := range []string{"| `kubectl ot why image plain` |", "| ``kubectl ot why image 'a`; reboot #'`` |", "| `kubectl ot why image 'a\\|b'` |", "| ```kubectl ot why image 'a``b'``` |"} {
		assert.Contains(t, text, want)
	}
}
