package remedy_test

import (
	"os"
	"path"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pelotech/ot-fleet/api/remedy"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

var (
	links   = regexp.MustCompile(`\[([^]]*)\]\(([^)#]*)(#[^)]*)?\)`)
	quoted  = regexp.MustCompile("`([A-Za-z]+)`")
	pageRef = regexp.MustCompile(`: docs/[a-z/]+\.md`)
)

// cellsOf returns the rows of the table of a page whose header has these cells.
func cellsOf(t *testing.T, page string, header ...string) (rows [][]string) {
	t.Helper()
	text, err := os.ReadFile(path.Join("../..", page))
	require.NoError(t, err)
	_, table, found := strings.Cut(string(text), "| "+strings.Join(header, " | ")+" |\n")
	require.True(t, found, "%s has no table %v", page, header)
	for _, line := range strings.Split(table, "\n")[1:] {
		if !strings.HasPrefix(line, "|") {
			break
		}
		cells := strings.Split(strings.Trim(line, "|"), "|")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		rows = append(rows, cells)
	}
	require.NotEmpty(t, rows)
	return rows
}

// plain is a text without the marks of a page: what it links to is not compared.
func plain(text string) string {
	text = links.ReplaceAllString(text, "$1")
	return strings.ReplaceAll(text, "`", "")
}

func requireRemedies(t *testing.T, condition, reasons, want string) {
	t.Helper()
	for _, match := range quoted.FindAllStringSubmatch(reasons, -1) {
		got := remedy.ForMember(condition, match[1])
		assert.Equal(t, plain(want), pageRef.ReplaceAllString(got, ""), "%s %s", condition, match[1])
		if target := links.FindStringSubmatch(want); target != nil {
			assert.Contains(t, got, path.Join("docs/operate", target[2]), "a link of the page is the path of what it leads to")
		}
	}
}

// What a page says of a condition, everything else that shows it says, too.
func TestRemediesAreThoseOfThePages(t *testing.T) {
	condition := ""
	for _, row := range cellsOf(t, "docs/operate/troubleshooting.md", "Condition", "Reason when it is not True", "What to do") {
		if row[0] != "" {
			condition = strings.Trim(row[0], "`")
		}
		if strings.Contains(row[0], "message") {
			continue // it is True
		}
		requireRemedies(t, condition, row[1], row[2])
	}
	for _, table := range []struct{ condition, header, skip string }{
		{v1alpha1.ConditionCredentialRotated, "What to do", v1alpha1.ReasonRotated},
		{v1alpha1.ConditionJoined, "Meaning", v1alpha1.ReasonJoined},
		{v1alpha1.ConditionAgentInstalled, "What to do", v1alpha1.ReasonInstalled},
	} {
		for _, row := range cellsOf(t, "docs/operate/members.md", "`"+table.condition+"`", table.header) {
			if row[0] == "`"+table.skip+"`" || strings.HasPrefix(row[1], "See ") {
				continue
			}
			requireRemedies(t, table.condition, row[0], row[1])
		}
	}
}

// Every page that a remedy names exists.
func TestPagesExist(t *testing.T) {
	for _, r := range []struct{ condition, reason string }{
		{v1alpha1.ConditionReachable, v1alpha1.ReasonOverLimits}, {v1alpha1.ConditionTransfersAccounted, v1alpha1.ReasonReportedSlotsExceedGrants},
		{v1alpha1.ConditionVersionSupported, v1alpha1.ReasonVersionTooOld}, {v1alpha1.ConditionQuarantined, v1alpha1.ReasonQuarantined},
	} {
		page := regexp.MustCompile(`docs/[a-z/]+\.md`).FindString(remedy.ForMember(r.condition, r.reason))
		require.NotEmpty(t, page, r)
		assert.FileExists(t, path.Join("../..", page))
	}
	assert.Empty(t, remedy.ForMember(v1alpha1.ConditionReachable, v1alpha1.ReasonConnected))
	assert.Empty(t, remedy.ForMember("Other", "Other"))
}
