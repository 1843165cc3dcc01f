package render

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// APIVersion of what -o json prints.
const APIVersion = "cli.pelotech.ot/v1alpha1"

// Envelope begins every View.
type Envelope struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
}

// NewEnvelope returns the envelope of a kind.
func NewEnvelope(kind string) Envelope { return Envelope{APIVersion: APIVersion, Kind: kind} }

// View is the answer of a verb: JSON by its tags, a screen by Draw.
type View interface{ Draw(*Page) }

// Item is one of what a View is about, for a watch that prints a line when it changes: what it is, which is
// no other's, and how it is, without times that pass.
type Item struct {
	Key   string
	State Line
}

// Print returns the line of an item.
func (i Item) Print(options Options) string {
	options.Width = 0
	line := i.State
	if i.Key != "" {
		line = append(Line{Bold("%s", i.Key), Text("  ")}, i.State...)
	}
	return strings.TrimRight(terminal{options}.paintLine(line), " ")
}

// Named is a View that -o name can print: kind/name, one a line.
type Named interface{ Names() []string }

// Reference returns the name of an object of OT Fleet as kubectl's -o name has it: kind.group/name, the
// same from each verb.
func Reference(kind, name string) string {
	return strings.ToLower(kind) + "." + v1alpha1.GroupVersion.Group + "/" + name
}

// Format is a parsed -o.
type Format struct {
	kind string
	// execute prints the fields of an answer by a template; nil for the other formats.
	execute executeFunc
}

// Formats are what -o takes.
var Formats = []string{"wide", "json", "yaml", "name", "jsonpath=TEMPLATE", "go-template=TEMPLATE", "custom-columns=SPEC", "markdown"}

// ParseFormat parses -o; empty is the screen.
func ParseFormat(text string) (f Format, err error) {
	kind, template, hasTemplate := strings.Cut(text, "=")
	f = Format{kind: kind}
	switch parse := templates[kind]; {
	case parse != nil && hasTemplate:
		if f.execute, err = parse(template); err != nil {
			return Format{}, fmt.Errorf("-o %s: %w", text, err)
		}
	case text != "" && !slices.Contains(Formats, text):
		return Format{}, fmt.Errorf("-o %s: must be one of %s", text, strings.Join(Formats, ", "))
	}
	return f, nil
}

// Screen reports whether the format is the screen, as opposed to data.
func (f Format) Screen() bool { return f.kind == "" || f.kind == "wide" }

// Separator goes before each answer of a stream but the first: without it, YAML documents run into
// one.
func (f Format) Separator() string {
	if f.kind == "yaml" {
		return "---\n"
	}
	return ""
}

// Write prints a View.
func (f Format) Write(out io.Writer, view View, options Options) error {
	if f.execute != nil {
		return f.writeTemplate(out, view, options)
	}
	var text []byte
	switch f.kind {
	case "json":
		var b bytes.Buffer
		encoder := json.NewEncoder(&b)
		encoder.SetIndent("", "  ")
		encoder.SetEscapeHTML(false)
		if err := encoder.Encode(view); err != nil {
			return fmt.Errorf("printing %T as JSON: %w", view, err)
		}
		text = EscapeControls(options.CompleteJSON(b.Bytes()))
	case "yaml":
		data, err := json.Marshal(view)
		if err != nil {
			return fmt.Errorf("printing %T as YAML: %w", view, err)
		}
		text, err = MarshalYAML(json.RawMessage(options.CompleteJSON(data)))
		if err != nil {
			return err
		}
	case "name":
		named, ok := view.(Named)
		if !ok {
			return errors.New("-o name: this verb lists nothing that has a name: use -o json")
		}
		for _, name := range named.Names() {
			text = append(text, printable(name)+"\n"...)
		}
	default:
		page := &Page{Wide: f.kind == "wide"}
		view.Draw(page)
		if f.kind == "markdown" {
			text = []byte(Markdown(page, options.Completion))
		} else {
			text = []byte(Print(page, options))
			options.writeAsides(page)
		}
	}
	_, err := out.Write(text)
	return err
}

// MarshalYAML returns an answer as YAML that is safe for a terminal.
func MarshalYAML(answer any) ([]byte, error) {
	data, err := json.Marshal(answer)
	if err == nil { // a parser of YAML refuses control characters that JSON allows
		data, err = yaml.JSONToYAML(EscapeControls(data))
	}
	if err != nil {
		return nil, fmt.Errorf("printing %T as YAML: %w", answer, err)
	}
	return []byte(Printable(string(data))), nil
}

// EscapeControls escapes in JSON what Printable replaces, which it has within its texts alone: whoever
// decodes it gets what was written, and a terminal does not.
func EscapeControls(data []byte) []byte {
	var b bytes.Buffer
	for _, r := range string(data) {
		if r != '\n' && isUnprintable(r) {
			fmt.Fprintf(&b, `\u%04x`, r)
			continue
		}
		b.WriteRune(r)
	}
	return b.Bytes()
}
