package doctor

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestBeforeJoin(t *testing.T) {
	finding := func(id, group string, status Status) Finding {
		return Finding{ID: id, Group: group, Status: status, Found: "there is none", Mend: "Install it."}
	}
	storage := finding("default-sc", groupStorage, Fail)
	storage.Subject = "gp3"
	r := &Report{Findings: []Finding{
		finding("cdi-present", groupCDI, Fail), storage, finding("agent-running", groupAgent, Fail), finding("budget-guarded", groupAgent, Warn),
		finding("k8s-version", groupCluster, Pass), finding("csi-capacity", groupStorage, Warn),
	}}
	assert.Equal(t, []string{
		"doctor: cdi-present: there is none. Install it.", "doctor: default-sc gp3: there is none. Install it.",
		"doctor: 1 warning: kubectl ot doctor --member-context oslo",
	}, r.BeforeJoin("oslo"))
	r.Findings = append(r.Findings, finding("clock-skew", groupCluster, Warn))
	assert.Contains(t, r.BeforeJoin("oslo"), "doctor: 2 warnings: kubectl ot doctor --member-context oslo")
	assert.Empty(t, (&Report{Findings: r.Findings[2:5]}).BeforeJoin("oslo"))
}
