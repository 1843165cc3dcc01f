package doctor

import (
	"encoding/xml"
	"fmt"
	"strings"

	"github.com/pelotech/ot-fleet/api/shellword"
	"github.com/pelotech/ot-fleet/cli/render"
)

// junitSuite is what test reporters of pipelines read.
type junitSuite struct {
	XMLName  xml.Name    `xml:"testsuite"`
	Name     string      `xml:"name,attr"`
	Tests    int         `xml:"tests,attr"`
	Failures int         `xml:"failures,attr"`
	Skipped  int         `xml:"skipped,attr"`
	Cases    []junitCase `xml:"testcase"`
}

type junitCase struct {
	Name    string        `xml:"name,attr"`
	Class   string        `xml:"classname,attr"`
	Failure *junitMessage `xml:"failure"`
	Skipped *junitMessage `xml:"skipped"`
	Output  string        `xml:"system-out,omitempty"`
}

type junitMessage struct {
	Message string `xml:"message,attr"`
	Text    string `xml:",chardata"`
}

// JUnit returns the report as JUnit XML, a test case for each finding. A warning passes, with
// its text as output.
func (r *Report) JUnit() ([]byte, error) {
	suite := junitSuite{Name: shellword.FormatCommand("kubectl ot doctor %s", r.Cluster), Tests: len(r.Findings), Failures: r.Summary.Failed, Skipped: r.Summary.Skipped}
	for i := range r.Findings {
		f := &r.Findings[i]
		c := junitCase{Name: strings.TrimSpace(f.ID + " " + f.Subject), Class: "doctor." + strings.ToLower(f.Group)}
		advice := fmt.Sprintf("Found: %s\nWanted: %s\nWhy: %s\nMend: %s\nPage: %s", f.Found, f.Wanted, f.Why, f.Mend, f.Page)
		switch f.Status {
		case Fail:
			c.Failure = &junitMessage{Message: f.Found, Text: advice}
		case Skip:
			c.Skipped = &junitMessage{Message: f.Found}
		case Warn:
			c.Output = "WARNING\n" + advice
		default:
			c.Output = f.Found
		}
		suite.Cases = append(suite.Cases, c)
	}
	text, err := xml.MarshalIndent(suite, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("writing JUnit XML: %w", err)
	}
	return []byte(xml.Header + render.Printable(string(text)) + "\n"), nil
}
