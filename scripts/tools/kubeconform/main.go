// Command kubeconform validates manifests against the kinds of Kubernetes; unknown fields are errors.
// It is kubeconform's library with schemas from Kubernetes' OpenAPI document, which is in its Go
// module: nothing is downloaded.
//
//	helm template charts/ot-hub | kubeconform -openapi swagger.json -skip PrometheusRule
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/yannh/kubeconform/pkg/validator"
)

func main() {
	openapi := flag.String("openapi", "", "Kubernetes' api/openapi-spec/swagger.json")
	skip := flag.String("skip", "", "Kinds that are not Kubernetes' own, with commas between.")
	flag.Parse()
	if err := check(*openapi, strings.Split(*skip, ","), os.Stdin); err != nil {
		fmt.Fprintln(os.Stderr, "kubeconform:", err)
		os.Exit(1)
	}
}

// check validates the manifests of a stream.
func check(openapi string, skip []string, manifests io.ReadCloser) error {
	folder, err := os.MkdirTemp("", "kubeconform")
	if err != nil {
		return fmt.Errorf("making a folder for schemas: %w", err)
	}
	defer func() { _ = os.RemoveAll(folder) }()
	if err := writeSchemas(openapi, folder); err != nil {
		return err
	}
	skipped := map[string]struct{}{}
	for _, kind := range skip {
		skipped[kind] = struct{}{}
	}
	v, err := validator.New([]string{filepath.Join(folder, "{{ .ResourceKind }}{{ .KindSuffix }}.json")}, validator.Opts{Strict: true, SkipKinds: skipped})
	if err != nil {
		return fmt.Errorf("preparing schemas: %w", err)
	}
	valid, faults := 0, []error(nil)
	for _, result := range v.Validate("stdin", manifests) {
		what := ""
		if s, err := result.Resource.Signature(); err == nil && s != nil {
			what = s.Kind + " " + s.Name
		}
		switch result.Status {
		case validator.Valid:
			valid++
		case validator.Invalid, validator.Error:
			faults = append(faults, fmt.Errorf("%s: %w", what, result.Err))
		}
	}
	if valid == 0 && len(faults) == 0 {
		return errors.New("there was nothing to check")
	}
	return errors.Join(faults...)
}

// writeSchemas writes a file for each kind, under the name that kubeconform expects. Each has all
// definitions it refers to, because some are recursive.
func writeSchemas(openapi, folder string) error {
	text, err := os.ReadFile(openapi)
	if err != nil {
		return fmt.Errorf("reading Kubernetes' OpenAPI document: %w", err)
	}
	var document struct {
		Definitions map[string]map[string]any `json:"definitions"`
	}
	if err := json.Unmarshal(text, &document); err != nil {
		return fmt.Errorf("reading Kubernetes' OpenAPI document %s: %w", openapi, err)
	}
	for name, definition := range document.Definitions {
		restrict(name, definition)
	}
	for name, definition := range document.Definitions {
		kinds, _ := definition["x-kubernetes-group-version-kind"].([]any)
		if len(kinds) != 1 {
			continue // no kind, or several, like DeleteOptions
		}
		kind, _ := kinds[0].(map[string]any)
		file := fmt.Sprintf("%v-%v.json", kind["kind"], kind["version"])
		if group := fmt.Sprint(kind["group"]); group != "" {
			first, _, _ := strings.Cut(group, ".")
			file = fmt.Sprintf("%v-%s-%v.json", kind["kind"], first, kind["version"])
		}
		schema, err := json.Marshal(map[string]any{"$ref": "#/definitions/" + name, "definitions": reachable(document.Definitions, name)})
		if err != nil {
			return fmt.Errorf("writing the schema of %s: %w", name, err)
		}
		if err := os.WriteFile(filepath.Join(folder, strings.ToLower(file)), schema, 0o600); err != nil {
			return fmt.Errorf("writing the schema of %s: %w", name, err)
		}
	}
	return nil
}

// restrict rejects unknown fields of a definition. Swagger cannot express values of two types.
func restrict(name string, definition map[string]any) {
	switch {
	case definition["format"] == "int-or-string":
		delete(definition, "format")
		definition["type"] = []string{"string", "integer"}
	case strings.HasSuffix(name, ".resource.Quantity"):
		definition["type"] = []string{"string", "number"}
	case definition["properties"] != nil && definition["additionalProperties"] == nil:
		definition["additionalProperties"] = false
	}
}

// reachable returns the definitions that one refers to.
func reachable(all map[string]map[string]any, name string) map[string]any {
	found := map[string]any{}
	var visit func(any)
	visit = func(part any) {
		switch part := part.(type) {
		case []any:
			for _, p := range part {
				visit(p)
			}
		case map[string]any:
			if to, ok := part["$ref"].(string); ok {
				to = strings.TrimPrefix(to, "#/definitions/")
				if _, known := found[to]; !known {
					found[to] = all[to]
					visit(all[to])
				}
			}
			for _, p := range part {
				visit(p)
			}
		}
	}
	found[name] = all[name]
	visit(all[name])
	return found
}
