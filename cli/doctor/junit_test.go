package doctor

import (
	"encoding/xml"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestJUnit(t *testing.T) {
	s := healthyMember()
	s.SnapshotClasses[0].Driver, s.Capacities, s.Secrets = "nfs.example.com <&>", nil, nil
	r := Examine(s)
	text, err := r.JUnit()
	require.NoError(t, err)
	var suite junitSuite
	require.NoError(t, xml.Unmarshal(text, &suite))
	assert.Equal(t, len(r.Findings), suite.Tests)
	assert.Equal(t, 1, suite.Failures)
	assert.Equal(t, r.Summary.Skipped, suite.Skipped)
	failed := 0
	for _, c := range suite.Cases {
		if c.Failure != nil {
			failed++
			assert.Contains(t, c.Name, "snapshot-class-driver")
			assert.Contains(t, c.Failure.Message, "nfs.example.com <&>")
			assert.Contains(t, c.Failure.Text, "Mend: ")
		}
	}
	assert.Equal(t, 1, failed)
}
