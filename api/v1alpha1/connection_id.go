package v1alpha1

import (
	"encoding/json"
	"hash/fnv"
	"strconv"

	"k8s.io/apimachinery/pkg/types"
)

// ConnectionID identifies how hub and member reach each other. It changes with every field
// of the spec except those that leave the connection as it is: the quarantine, and who may
// register in pull mode, which condition Joined is about. A MemberCluster that was deleted
// and created again has another one.
func (m *MemberCluster) ConnectionID() string {
	spec := m.Spec
	spec.Quarantine = nil
	if spec.Connection.Pull != nil {
		spec.Connection.Pull = &MemberPull{}
	}
	text, err := json.Marshal(struct {
		UID  types.UID
		Spec MemberClusterSpec
	}{m.UID, spec})
	if err != nil {
		panic(err) // the spec holds only strings and booleans
	}
	h := fnv.New64a()
	_, _ = h.Write(text)
	return strconv.FormatUint(h.Sum64(), 36)
}
