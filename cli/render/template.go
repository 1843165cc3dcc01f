package render

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/cli-runtime/pkg/printers"
	"k8s.io/client-go/util/jsonpath"
)

// executeFunc prints the fields of an answer, which are those of its JSON.
type executeFunc func(out io.Writer, fields map[string]any, options Options) error

// templates parse what follows the formats that have a template. As with kubectl, fields that are
// missing are empty.
var templates = map[string]func(template string) (executeFunc, error){
	"jsonpath":       parseJSONPath,
	"go-template":    parseGoTemplate,
	"custom-columns": parseColumns,
}

// relaxed adds the braces that kubectl lets one leave out.
func relaxed(template string) string {
	if !strings.Contains(template, "{") {
		return "{." + strings.TrimPrefix(template, ".") + "}"
	}
	return template
}

func parseJSONPath(template string) (executeFunc, error) {
	printer, err := printers.NewJSONPathPrinter(relaxed(template))
	if err != nil {
		return nil, err
	}
	printer.AllowMissingKeys(true)
	return func(out io.Writer, fields map[string]any, _ Options) error { return printer.Execute(out, fields) }, nil
}

func parseGoTemplate(template string) (executeFunc, error) {
	printer, err := printers.NewGoTemplatePrinter([]byte(template))
	if err != nil {
		return nil, err
	}
	printer.AllowMissingKeys(true)
	return func(out io.Writer, fields map[string]any, _ Options) error {
		return printer.PrintObj(&unstructured.Unstructured{Object: fields}, out)
	}, nil
}

// parseColumns parses NAME:PATH,NAME:PATH. There is a row for each of the items of a list, and one of an
// answer that is none.
func parseColumns(spec string) (executeFunc, error) {
	var columns []Column
	var paths []*jsonpath.JSONPath
	for part := range strings.SplitSeq(spec, ",") {
		title, path, ok := strings.Cut(part, ":")
		if !ok || title == "" || path == "" {
			return nil, fmt.Errorf("%q: must be NAME:PATH, as in CLUSTER:.name", part)
		}
		parsed := jsonpath.New(title).AllowMissingKeys(true)
		if err := parsed.Parse(relaxed(path)); err != nil {
			return nil, fmt.Errorf("column %s: %w", title, err)
		}
		columns, paths = append(columns, Column{Title: title}), append(paths, parsed)
	}
	return func(out io.Writer, fields map[string]any, options Options) error {
		rows, isList := fields["items"].([]any)
		if !isList {
			rows = []any{fields}
		}
		page := &Page{}
		table := page.Table(columns...)
		for _, of := range rows {
			cells := make([]Line, len(paths))
			for i, path := range paths {
				text, err := findValues(path, of)
				if err != nil {
					return fmt.Errorf("column %s: %w", columns[i].Title, err)
				}
				cells[i] = Words(text)
			}
			table.Row(cells...)
		}
		options.Width = 0 // scripts read all of it
		_, err := io.WriteString(out, Print(page, options))
		return err
	}, nil
}

// findValues returns what a path leads to, as kubectl prints it in a column.
func findValues(path *jsonpath.JSONPath, of any) (string, error) {
	results, err := path.FindResults(of)
	if err != nil {
		return "", err
	}
	var texts []string
	for _, values := range results {
		for _, value := range values {
			texts = append(texts, fmt.Sprint(value.Interface()))
		}
	}
	if len(texts) == 0 {
		return "<none>", nil
	}
	return strings.Join(texts, ","), nil
}

// writeTemplate prints an answer by a template. It ends with a line break.
func (f Format) writeTemplate(out io.Writer, view View, options Options) error {
	data, err := json.Marshal(view)
	if err != nil {
		return fmt.Errorf("printing %T: %w", view, err)
	}
	var fields map[string]any
	if err := utiljson.Unmarshal(options.CompleteJSON(data), &fields); err != nil { // which keeps whole numbers whole
		return fmt.Errorf("printing %T: %w", view, err)
	}
	var b bytes.Buffer
	if err := f.execute(&b, fields, options); err != nil {
		return fmt.Errorf("-o %s: %w", f.kind, errors.New(strings.TrimSpace(err.Error())))
	}
	text := Printable(b.String())
	if !strings.HasSuffix(text, "\n") {
		text += "\n"
	}
	_, err = io.WriteString(out, text)
	return err
}
