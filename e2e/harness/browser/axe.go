package browser

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"
)

// violation is a rule of accessibility that a page breaks.
type violation struct {
	ID     string `json:"id"`
	Help   string `json:"help"`
	Impact string `json:"impact"`
	Nodes  []struct {
		Target  []any  `json:"target"`
		HTML    string `json:"html"`
		Failure string `json:"failureSummary"`
	} `json:"nodes"`
}

// axeRun returns the violations of all rules, of those parts that are drawn.
const axeRun = `axe.run(document, { resultTypes: ['violations'] }).then((r) => JSON.stringify(r.violations))`

// ErrAxeMissing is the error where axe-core is not installed.
var ErrAxeMissing = errors.New("axe-core is not installed: (cd ui && npm ci)")

// readAxe finds axe-core upwards from the working directory.
func readAxe() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		text, err := os.ReadFile(filepath.Join(dir, "ui", "node_modules", "axe-core", "axe.min.js"))
		switch {
		case err == nil:
			return string(text), nil
		case !errors.Is(err, fs.ErrNotExist):
			return "", err
		case dir == filepath.Dir(dir):
			return "", ErrAxeMissing
		}
		dir = filepath.Dir(dir)
	}
}

// FindViolations returns what axe-core finds wrong on the page, one text for each rule. The
// page's Content-Security-Policy does not hold for what the browser injects.
func (p *Page) FindViolations() ([]string, error) {
	axe, err := readAxe()
	if err != nil {
		return nil, err
	}
	if _, err := chromedp.Call(p.ctx, runtime.Evaluate, runtime.EvaluateParams{Expression: axe + "\n;0"}); err != nil {
		return nil, fmt.Errorf("injecting axe-core: %w", err)
	}
	text, err := chromedp.Run(p.ctx, chromedp.Evaluate[string](axeRun, chromedp.EvalAwaitPromise))
	if err != nil {
		return nil, fmt.Errorf("running axe-core: %w", err)
	}
	var violations []violation
	if err := json.Unmarshal([]byte(text), &violations); err != nil {
		return nil, err
	}
	texts := make([]string, len(violations))
	for i, v := range violations {
		texts[i] = fmt.Sprintf("%s (%s): %s", v.ID, v.Impact, v.Help)
		for _, node := range v.Nodes[:min(3, len(v.Nodes))] {
			html := node.HTML[:min(len(node.HTML), 200)]
			texts[i] += fmt.Sprintf("\n    %v %s\n      %s", node.Target, html, strings.ReplaceAll(node.Failure, "\n", " "))
		}
	}
	return texts, nil
}

// CheckAccessibility fails a test for each rule of accessibility that the page breaks, and skips
// it where axe-core is not installed.
func (p *Page) CheckAccessibility(t *testing.T) {
	t.Helper()
	violations, err := p.FindViolations()
	if errors.Is(err, ErrAxeMissing) {
		t.Skip(err)
	}
	require.NoError(t, err)
	if len(violations) > 0 {
		t.Errorf("%d rules of accessibility are broken:\n%s", len(violations), strings.Join(violations, "\n"))
	}
}
