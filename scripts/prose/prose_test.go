package main

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestPhrases(t *testing.T) {
	for text, want := range map[string]int{
		"// The agent applies this plan.":                    0,
		"// Leases time out forever after.":                  0,
		"// what the plan is gone by":                        1,
		"failing downloads retry for ever":                   1,
		"clocks are of no account, and it is told of images": 2,
		"see DESIGN, S2":                                     1,
		"value, is := o.(*v1alpha1.VMDiskImage)":             1,
		"value, ok := o.(*v1alpha1.VMDiskImage)":             0,
	} {
		assert.Len(t, checkPhrases("a.go", text), want, text)
	}
}

func TestNames(t *testing.T) {
	const source = `package a
func tell() {}
func (t *T) Look() {}
func recordEvents() {}
func Get() {}
`
	var lines []int
	for _, f := range checkNames("a.go", []byte(source)) {
		lines = append(lines, f.line)
	}
	assert.Equal(t, []int{2, 3}, lines)
	assert.Len(t, checkNames("a.go", []byte("no Go")), 1, "what cannot be parsed is a finding")
}

func TestPages(t *testing.T) {
	words := func(n int) string { return strings.TrimSpace(strings.Repeat("word ", n)) }
	for name, c := range map[string]struct {
		file, text string
		want       int
	}{
		"a short paragraph":                   {"docs/a.md", words(60), 0},
		"a long paragraph":                    {"docs/a.md", words(61), 1},
		"a long paragraph over lines":         {"docs/a.md", words(40) + "\n" + words(40), 1},
		"two paragraphs":                      {"docs/a.md", words(40) + "\n\n" + words(40), 0},
		"items of a list":                     {"docs/a.md", "- " + words(40) + "\n- " + words(40), 0},
		"code":                                {"docs/a.md", "```\n" + words(200) + "\n```", 0},
		"a long cell":                         {"docs/a.md", "| " + words(26) + " | " + words(3) + " |", 1},
		"a wide row of short cells":           {"docs/a.md", "| " + words(25) + " | " + words(25) + " |", 0},
		"punctuation and the target of links": {"docs/a.md", "[" + words(60) + "](https://example.com/a b c d) - | =", 0},
		"a README":                            {"README.md", strings.Repeat(words(50)+"\n\n", 14), 0},
		"a README that is too long":           {"README.md", strings.Repeat(words(50)+"\n\n", 15), 1},
		"a map of packages":                   {"hub/README.md", strings.Repeat(words(50)+"\n\n", 11), 1},
		"any other page":                      {"docs/a.md", strings.Repeat(words(50)+"\n\n", 100), 0},
	} {
		assert.Len(t, checkPage(c.file, c.text), c.want, name)
	}
}

func TestPackageMaps(t *testing.T) {
	t.Chdir(t.TempDir())
	for _, folder := range []string{"hub/plan", "hub/controllers/grant", "hub/testdata", "e2e/suites/agent"} {
		require.NoError(t, os.MkdirAll(folder, 0o700))
		if folder != "hub/testdata" {
			require.NoError(t, os.WriteFile(folder+"/a.go", nil, 0o600))
		}
	}
	const table = "| Package | Holds |\n| --- | --- |\n"
	for rows, want := range map[string]int{
		"| `plan`, `controllers/grant` | plans, with `budget` |\n": 0,
		"| `plan` | plans |\n":                                       1,
		"| `plan` | with `controllers/grant` |\n":                    1,
		"| `plan`, `controllers/grant` | |\n| `budget` | shares |\n": 1,
	} {
		assert.Len(t, checkMap("hub/README.md", table+rows), want, rows)
	}
	assert.Empty(t, checkMap("e2e/README.md", table+"| `agent` | an agent alone |\n"))
	assert.Empty(t, checkMap("docs/a.md", table), "no map of packages")
}

func TestLinks(t *testing.T) {
	t.Chdir(t.TempDir())
	require.NoError(t, os.WriteFile("other.md", []byte("# Who holds what\n\n## `Joined`, and more\n"), 0o600))
	for target, want := range map[string]int{
		"https://example.com/x": 0, "other.md": 0, "other.md#who-holds-what": 0, "other.md#joined-and-more": 0, "#here": 0, "../docs/other.md": 0,
		"missing.md": 1, "other.md#missing": 1, "#missing": 1,
	} {
		assert.Len(t, checkLinks("docs.md", "# Here\n\nSee [this]("+strings.Replace(target, "../docs/", "", 1)+").\n"), want, target)
	}
	assert.Empty(t, checkLinks("docs.md", "```\n[x](missing.md)\n```\n"), "code is not read")
}

func TestNamedTests(t *testing.T) {
	t.Chdir(t.TempDir())
	require.NoError(t, os.MkdirAll("agent/image", 0o700))
	require.NoError(t, os.WriteFile("agent/image/image_test.go", []byte("package image\n\nfunc TestThere(t *testing.T) {}\n"), 0o600))
	const table = "| Party | Shown by |\n| --- | --- |\n"
	for row, want := range map[string]int{
		"| source | `agent/image TestThere` |":                         0,
		"| source | `agent/image TestGone` |":                          1,
		"| source | `agent/vm TestThere` |":                            1,
		"| source | `agent/image TestThere`, `agent/image FuzzGone` |": 1,
		"| source | `charts/ot-hub/tests/gone_test.yaml` |":            1,
		"| source | a review |":                                        1,
	} {
		assert.Len(t, checkTests("SECURITY.md", table+row+"\n"), want, row)
	}
	assert.Empty(t, checkTests("SECURITY.md", strings.Replace(table, "Shown by", "Now", 1)+"| source | a review |\n"), "other tables need no tests")
}

func TestIsProse(t *testing.T) {
	for file, want := range map[string]bool{
		"agent/image/decide.go": true, "charts/ot-hub/templates/NOTES.txt": true, "scripts/kind-up": true, "README.md": true,
		"api/v1alpha1/zz_generated.deepcopy.go": false, "go.sum": false, "scripts/prose/phrases.go": false,
		"e2e/suites/chart/testdata/previous/objects.yaml": false,
	} {
		assert.Equal(t, want, isProse(file), file)
	}
}
