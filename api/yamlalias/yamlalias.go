// Package yamlalias bounds what aliases make of a YAML text before a parser expands them.
package yamlalias

import (
	"bytes"
	"errors"
	"io"

	"go.yaml.in/yaml/v3"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// minExpansion is what aliases may repeat in a short text: a few settings in a few dozen entries.
const minExpansion = 16 << 10

// ErrExpansion means that aliases repeat too much.
var ErrExpansion = errors.New("its YAML aliases (*) repeat too much: write the values out instead")

// Check refuses a text whose aliases repeat more than the text itself has, or 16 KiB, counted in
// bytes of values and one per value: 16 KiB of text would otherwise become hundreds of thousands of
// values. Whoever parses YAML that somebody else may have written calls it first.
func Check(text []byte) error { return checkWithin(text, 1) }

// CheckOverrides is Check for a list that names each cluster of a fleet with settings that all share:
// its aliases may repeat eight times as much as the text has.
func CheckOverrides(text []byte) error { return checkWithin(text, 8) }

func checkWithin(text []byte, times int) error {
	// Without an anchor there is no alias, and no reason to parse twice.
	if !bytes.ContainsRune(text, '&') {
		return nil
	}
	left := max(times*len(text), minExpansion)
	for decoder := yaml.NewDecoder(bytes.NewReader(text)); ; {
		// Decoding into a node expands nothing.
		var document yaml.Node
		switch err := decoder.Decode(&document); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil: // what this parser cannot read, it cannot search for aliases
			return errors.New("it is not YAML: " + v1alpha1.SanitizeText(err.Error(), 120))
		case !fits(&document, false, &left):
			return ErrExpansion
		}
	}
}

// fits takes what a node repeats from what is left, and reports whether it was enough. An anchor
// that contains its own alias never is.
func fits(n *yaml.Node, repeated bool, left *int) bool {
	if repeated {
		if *left -= 1 + len(n.Value); *left < 0 {
			return false
		}
	}
	if n.Alias != nil {
		return fits(n.Alias, true, left)
	}
	for _, child := range n.Content {
		if !fits(child, repeated, left) {
			return false
		}
	}
	return true
}
