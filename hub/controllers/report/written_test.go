package report

import (
	"context"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"

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

// lateClient answers a write some time after it was stored.
type lateClient struct {
	client.Client
	stored, answer chan struct{}
}

func (c lateClient) Update(ctx context.Context, o client.Object, options ...client.UpdateOption) error {
	err := c.Client.Update(ctx, o, options...)
	close(c.stored)
	<-c.answer
	return err
}

// TestEventBeforeAnswer: the event of a write that comes before its answer waits for it.
func TestEventBeforeAnswer(t *testing.T) {
	for name, tt := range map[string]struct {
		answered  bool
		wantReads int
	}{
		"the answer comes":    {true, 0},
		"it does not in time": {false, 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newTestReports(t)
				r.filled = make(chan struct{})
				close(r.filled)
				late := lateClient{r.memoryClient, make(chan struct{}), make(chan struct{})}
				written, wrote := r.writtenReport(), make(chan error)
				go func() { wrote <- r.RememberWrites(late).Update(t.Context(), written) }()
				<-late.stored
				read := make(chan struct{})
				go func() {
					defer close(read)
					r.reconcile()
				}()
				if tt.answered {
					synctest.Wait() // the reconcile waits
					close(late.answer)
					<-read
				} else {
					<-read
					close(late.answer)
				}
				require.NoError(t, <-wrote)
				assert.Equal(t, tt.wantReads, r.reads[v1alpha1.MailboxName])
				assert.Equal(t, r.sequence, r.Store.Root(testMember).Sequence)
			})
		})
	}
}

// TestWrittenReportsAreBounded: as many small reports are held as a busy hub writes, and of large
// ones no more than their bound.
func TestWrittenReportsAreBounded(t *testing.T) {
	w := newWrittenReports()
	hold := func(n, bytes int) (held int) {
		stored := make([]*metav1.PartialObjectMetadata, n)
		for i := range stored {
			meta := metav1.ObjectMeta{Namespace: "ot-member-a", Name: strconv.Itoa(i), ResourceVersion: "1"}
			stored[i] = &metav1.PartialObjectMetadata{ObjectMeta: meta}
			w.beginWrite(client.ObjectKeyFromObject(stored[i]))(&v1alpha1.ClusterReport{ObjectMeta: meta, Root: &v1alpha1.ReportRoot{BootID: strings.Repeat("x", bytes)}})
		}
		for _, s := range stored {
			if w.takeStored(t.Context(), s) != nil {
				held++
			}
		}
		assert.Zero(t, w.bytes)
		assert.Empty(t, w.inFlight)
		return held
	}
	assert.Equal(t, maxWrittenReports, hold(maxWrittenReports+8, 0))
	assert.Equal(t, maxWrittenBytes/v1alpha1.MaxReportObjectBytes-1, hold(64, v1alpha1.MaxReportObjectBytes))
}
