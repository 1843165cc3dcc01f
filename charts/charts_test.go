package charts_test

import (
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"
)

// readFiles returns the texts of the files below a folder that have one of the endings.
func readFiles(t *testing.T, folder string, endings ...string) map[string]string {
	t.Helper()
	texts := map[string]string{}
	require.NoError(t, filepath.WalkDir(folder, func(path string, entry fs.DirEntry, err error) error {
		for _, ending := range endings {
			if err != nil || entry.IsDir() || !strings.HasSuffix(path, ending) {
				continue
			}
			var text []byte
			text, err = os.ReadFile(path)
			texts[path] = string(text)
		}
		return err
	}))
	require.NotEmpty(t, texts)
	return texts
}

type schema struct {
	Properties map[string]schema `json:"properties"`
	Required   []string          `json:"required"`
}

// TestSectionsAreRequired: Helm drops keys that are null, and templates read keys of sections. Without
// the schema's sentence they end in a nil pointer.
func TestSectionsAreRequired(t *testing.T) {
	var check func(t *testing.T, path string, values map[string]any, known schema)
	check = func(t *testing.T, path string, values map[string]any, known schema) {
		for key, value := range values {
			section, _ := value.(map[string]any)
			if below := known.Properties[key]; len(below.Properties) > 0 && len(section) > 0 && key != "resources" {
				assert.Contains(t, known.Required, key, "%s/%s may be null", path, key)
				check(t, path+"/"+key, section, below)
			}
		}
	}
	for _, chart := range []string{"ot-agent", "ot-hub"} {
		t.Run(chart, func(t *testing.T) {
			values, known := map[string]any{}, schema{}
			text, err := os.ReadFile(filepath.Join(chart, "values.yaml"))
			require.NoError(t, err)
			require.NoError(t, yaml.Unmarshal(text, &values))
			text, err = os.ReadFile(filepath.Join(chart, "values.schema.json"))
			require.NoError(t, err)
			require.NoError(t, json.Unmarshal(text, &known))
			check(t, "", values, known)
		})
	}
}

// unquotedName finds a name as a whole YAML value without quotes.
var unquotedName = regexp.MustCompile(`(?m)^\s*(- )?([\w./-]+: )?\{\{-? \$?\.(Release\.(Name|Namespace)|Values\.[\w.]*([nN]ame|[nN]amespace)) \}\}$|^\s*(namespace|\w+Name): \{\{ [.$]\w* \}\}$`)

// TestNamesInTemplatesAreQuoted: YAML reads the valid names 2024, 1e3 and on as numbers or booleans.
func TestNamesInTemplatesAreQuoted(t *testing.T) {
	for _, chart := range []string{"ot-agent", "ot-hub"} {
		for path, text := range readFiles(t, filepath.Join(chart, "templates"), ".yaml", ".tpl") {
			assert.Empty(t, unquotedName.FindAllString(text, -1), "%s: add | quote", path)
		}
	}
}

var quotedLogLine = regexp.MustCompile(`"([A-Z][^"]* [^"]*)"`)

// TestLogLinesInRunbooksExist: a person searches the log for what a runbook quotes.
func TestLogLinesInRunbooksExist(t *testing.T) {
	sources := strings.Builder{}
	for _, folder := range []string{"../agent", "../hub", "../api"} {
		for path, text := range readFiles(t, folder, ".go") {
			if !strings.HasSuffix(path, "_test.go") {
				sources.WriteString(text)
			}
		}
	}
	found := 0
	for _, chart := range []string{"ot-agent", "ot-hub"} {
		for path, text := range readFiles(t, filepath.Join(chart, "runbooks"), ".md") {
			for _, quoted := range quotedLogLine.FindAllStringSubmatch(text, -1) {
				found++
				if !strings.Contains(sources.String(), `"`+quoted[1]) {
					t.Errorf("%s: no program logs %q", path, quoted[1])
				}
			}
		}
	}
	assert.Positive(t, found)
}

var columnWord = regexp.MustCompile(`\b[A-Z]{5,}\b`)

// TestColumnsInRunbooksExist: a runbook that names a column sends a person to what kubectl prints.
func TestColumnsInRunbooksExist(t *testing.T) {
	crd, err := os.ReadFile("ot-hub/files/crds/pelotech.ot_memberclusters.yaml")
	require.NoError(t, err)
	columns := map[string]bool{}
	for _, column := range regexp.MustCompile(`(?m)^      name: (\w+)$`).FindAllStringSubmatch(string(crd), -1) {
		columns[strings.ToUpper(column[1])] = true
	}
	named := 0
	for path, text := range readFiles(t, "ot-hub/runbooks", ".md") {
		for line := range strings.Lines(text) {
			if !strings.Contains(line, "`kubectl get membercluster") {
				continue
			}
			for _, word := range columnWord.FindAllString(line, -1) {
				named++
				assert.True(t, columns[word], "%s: kubectl get memberclusters has no column %s", path, word)
			}
		}
	}
	assert.Positive(t, named)
}
