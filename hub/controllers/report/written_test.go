package report

import (
	"context"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// writtenReport returns a root that this process writes: it replaces what is stored.
func (r *testReports) writtenReport(pages ...string) *v1alpha1.ClusterReport {
	r.writeRoot(pages...)
	return r.memoryClient.reports[v1alpha1.MailboxName].DeepCopy()
}

// Update implements client.Writer.
func (c *memoryClient) Update(_ context.Context, o client.Object, _ ...client.UpdateOption) error {
	version, err := strconv.ParseInt(o.GetResourceVersion(), 10, 64)
	if err != nil {
		return err
	}
	o.SetResourceVersion(strconv.FormatInt(version+1000, 10))
	o.SetManagedFields([]metav1.ManagedFieldsEntry{{Manager: "ot-hub"}})
	c.reports[o.GetName()] = o.DeepCopyObject().(*v1alpha1.ClusterReport)
	return nil
}

// TestOwnWriteIsNotReadAgain: what the relay of this process has written is known, unless
// another one has written since.
func TestOwnWriteIsNotReadAgain(t *testing.T) {
	for name, tt := range map[string]struct {
		reading bool
		// between changes what is stored after this process has written.
		between   func(*testReports)
		wantReads int
	}{
		"what it wrote is stored":            {reading: true},
		"before the stored reports are read": {wantReads: 1},
		"another replica has written since":  {reading: true, wantReads: 1, between: func(r *testReports) { r.writeRoot() }},
		"the hub was restored since": {reading: true, wantReads: 1, between: func(r *testReports) {
			r.memoryClient.reports[v1alpha1.MailboxName].UID = "another"
		}},
	} {
		t.Run(name, func(t *testing.T) {
			r := newTestReports(t)
			if r.filled = make(chan struct{}); tt.reading {
				close(r.filled)
			}
			require.NoError(t, r.RememberWrites(r.memoryClient).Update(t.Context(), r.writtenReport()))
			if tt.between != nil {
				tt.between(r)
			}
			if !tt.reading {
				close(r.filled)
			}
			r.reconcile()
			assert.Equal(t, tt.wantReads, r.reads[v1alpha1.MailboxName])
			root := r.Store.Root(testMember)
			assert.Equal(t, r.sequence, root.Sequence)
			r.reconcile()
			assert.Equal(t, tt.wantReads, r.reads[v1alpha1.MailboxName], "nothing has changed")
		})
	}
}
