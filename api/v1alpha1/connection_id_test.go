package v1alpha1

import (
	"testing"

	"github.com/stretchr/testify/assert"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestConnectionID(t *testing.T) {
	member := func(change func(*MemberCluster)) *MemberCluster {
		m := &MemberCluster{ObjectMeta: metav1.ObjectMeta{Name: "a", UID: "a"}, Spec: MemberClusterSpec{AgentNamespace: "ot-agent"}}
		m.Spec.Connection.KubeconfigSecretRef = &SecretKeyRef{Name: "a", Key: "kubeconfig"}
		change(m)
		return m
	}
	pull := func(m *MemberCluster) { m.Spec.Connection = MemberConnection{Pull: &MemberPull{}} }
	as := func(changes ...func(*MemberCluster)) string {
		return member(func(m *MemberCluster) {
			for _, do := range changes {
				do(m)
			}
		}).ConnectionID()
	}
	seen := map[string]string{as(): "unchanged"}
	for name, change := range map[string]func(*MemberCluster){
		"Secret":         func(m *MemberCluster) { m.Spec.Connection.KubeconfigSecretRef.Name = "b" },
		"key":            func(m *MemberCluster) { m.Spec.Connection.KubeconfigSecretRef.Key = "b" },
		"Cluster":        func(m *MemberCluster) { m.Spec.Connection = MemberConnection{ClusterAPI: &ClusterAPIRef{Name: "a"}} },
		"pull":           pull,
		"agentNamespace": func(m *MemberCluster) { m.Spec.AgentNamespace = "b" },
		"TLS":            func(m *MemberCluster) { m.Spec.InsecureSkipTLSVerify = true },
		"UID":            func(m *MemberCluster) { m.UID = "b" },
	} {
		id := as(change)
		assert.Empty(t, seen[id], name)
		assert.LessOrEqual(t, len(id), 16)
		seen[id] = name
	}
	for name, change := range map[string]func(*MemberCluster){
		"label": func(m *MemberCluster) { m.Labels = map[string]string{"a": "b"} }, "generation": func(m *MemberCluster) { m.Generation++ },
		"quarantine": func(m *MemberCluster) { m.Spec.Quarantine = &MemberQuarantine{Reason: "a"} },
	} {
		assert.Equal(t, as(), as(change), name)
	}
	registered := func(m *MemberCluster) {
		m.Spec.Connection.Pull = &MemberPull{AutoAccept: true, AcceptedKey: "a", Revoked: true}
	}
	assert.Equal(t, as(pull), as(pull, registered), "who may register leaves the connection as it is")
}
