package relay

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/pelotech/ot-fleet/api/hubclient"
	"github.com/pelotech/ot-fleet/api/mailbox"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/controllers/shard"
	"github.com/pelotech/ot-fleet/hub/metrics"
)

// TestUploadsAreMeasured: what is stored or refused counts with the larger of request and answer,
// and what an API server turns away does not.
func TestUploadsAreMeasured(t *testing.T) {
	const managed = 10_000
	answerObject := func(w http.ResponseWriter, sent []byte) {
		stored := &v1alpha1.ClusterReport{}
		_ = json.Unmarshal(sent, stored)
		stored.Annotations = map[string]string{"managed": strings.Repeat("x", managed)}
		_ = json.NewEncoder(w).Encode(stored)
	}
	answerStatus := func(code int32, reason metav1.StatusReason) func(http.ResponseWriter, []byte) {
		return func(w http.ResponseWriter, _ []byte) {
			w.WriteHeader(int(code))
			_ = json.NewEncoder(w).Encode(metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Code: code, Reason: reason})
		}
	}
	for name, tt := range map[string]struct {
		answer  func(w http.ResponseWriter, sent []byte)
		updates bool
		want    func(sent, answered int) int
	}{
		"created": {answer: answerObject, want: func(_, answered int) int { return answered }},
		"updated": {answer: answerObject, updates: true, want: func(_, answered int) int { return answered }},
		"stored without a part": {answer: func(w http.ResponseWriter, _ []byte) { answerObject(w, []byte("{}")) },
			want: func(sent, _ int) int { return sent }},
		"refused":          {answer: answerStatus(http.StatusUnprocessableEntity, metav1.StatusReasonInvalid), want: func(sent, _ int) int { return sent }},
		"too large":        {answer: answerStatus(http.StatusRequestEntityTooLarge, metav1.StatusReasonRequestEntityTooLarge), want: func(sent, _ int) int { return sent }},
		"a conflict":       {answer: answerStatus(http.StatusConflict, metav1.StatusReasonConflict), updates: true, want: func(int, int) int { return 0 }},
		"it exists":        {answer: answerStatus(http.StatusConflict, metav1.StatusReasonAlreadyExists), want: func(int, int) int { return 0 }},
		"a busy server":    {answer: answerStatus(http.StatusTooManyRequests, metav1.StatusReasonTooManyRequests), want: func(int, int) int { return 0 }},
		"a failing server": {answer: answerStatus(http.StatusInternalServerError, metav1.StatusReasonInternalError), want: func(sent, _ int) int { return sent }},
	} {
		t.Run(name, func(t *testing.T) {
			var sent, answered int
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				text, _ := io.ReadAll(r.Body)
				sent = len(text)
				answer := httptest.NewRecorder()
				tt.answer(answer, text)
				answered = answer.Body.Len()
				w.Header().Set("Content-Type", "application/json")
				w.WriteHeader(answer.Code)
				_, _ = w.Write(answer.Body.Bytes())
			}))
			defer server.Close()
			cfg := &rest.Config{Host: server.URL}
			cfg.Wrap(MeasureUploads)
			live, err := client.New(cfg, client.Options{Scheme: hubclient.Scheme, Mapper: hubclient.Mapper})
			require.NoError(t, err)
			report := func() *v1alpha1.ClusterReport {
				return &v1alpha1.ClusterReport{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "page"}, ClusterUID: "uid", Page: &v1alpha1.ReportPage{
					Images: []v1alpha1.ReportedImage{{Message: strings.Repeat("m", 20*managed)}},
				}}
			}
			write := func(ctx context.Context) {
				if tt.updates {
					_ = live.Update(ctx, report())
				} else {
					_ = live.Create(ctx, report())
				}
			}
			ctx, size := measureUpload(t.Context())
			write(ctx)
			assert.Equal(t, uploadSize{requests: 1, bytes: tt.want(sent, answered)}, *size)
			assert.Greater(t, sent, 20*managed)
			first := *size
			_ = live.Get(ctx, client.ObjectKey{Namespace: "ns", Name: "page"}, report())
			assert.Equal(t, uploadSize{requests: 2, bytes: first.bytes}, *size, "reads cost nothing")
			write(t.Context())
			assert.Equal(t, 2, size.requests, "another context is another upload")
		})
	}
}

// TestUnmeasuredUploadIsAnError: with a client that nobody has wrapped, nothing would bound what a
// member writes to the hub.
func TestUnmeasuredUploadIsAnError(t *testing.T) {
	scheme := hubclient.Scheme
	report := &v1alpha1.ClusterReport{ObjectMeta: metav1.ObjectMeta{Namespace: "ot-agent", Name: v1alpha1.MailboxName}, ClusterUID: "uid", Root: &v1alpha1.ReportRoot{}}
	hub, member := fake.NewClientBuilder().WithScheme(scheme).Build(), fake.NewClientBuilder().WithScheme(scheme).WithObjects(report).Build()
	r := &Reconciler{Replica: shard.NewReplica(hub, shard.Options{}), Metrics: metrics.New(prometheus.NewRegistry())}
	s := &mailboxSync{member: "edge", state: &connectionState{}, relay: mailbox.Relay{
		Hub: mailbox.Side{Cached: hub, Live: hub, Namespace: "ot-member-edge"}, Member: mailbox.Side{Cached: member, Live: member, Namespace: "ot-agent"},
	}}
	r.syncUp(t.Context(), s)
	require.Equal(t, 1, s.up.Written)
	require.ErrorIs(t, s.upErr, errNotMeasured)
}
