package policy

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// Only the hub limits a cluster within the fleet: a ConfigMap of the cluster that tries to
// is ignored, and so is what the ledger stores of one.
func TestOwnConfigMapSetsNoFleetLimits(t *testing.T) {
	data := map[string]string{"concurrency": "2", "retryLimit": "1", "retryBackoffDuration": "1s", "safeConcurrency": "2"}
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "sync-operator", Name: "sync-operator-policy"}, Data: data}
	withConfigMap := fake.NewClientBuilder().WithObjects(cm).Build()
	without := fake.NewClientBuilder().Build()
	for name, c := range map[string]client.Client{"ConfigMap": withConfigMap, "stored in the ledger": without} {
		t.Run(name, func(t *testing.T) {
			r := &Reader{Cached: c, Live: c, ConfigMapKey: client.ObjectKeyFromObject(cm), Now: time.Now}
			status := v1alpha1.SyncLedgerStatus{}
			if c == without {
				status.Policy = data
			}
			got, err := r.readConfigMap(t.Context(), status, false)
			require.NoError(t, err)
			require.NotNil(t, got.own)
			assert.False(t, got.own.UsesGrants)
			assert.Zero(t, got.own.SafeConcurrency)
			assert.EqualValues(t, 2, got.own.Concurrency)
			if c == withConfigMap {
				assert.Contains(t, got.ignoredKeys, "safeConcurrency")
			}
		})
	}
}

// A file that is not UTF-8, as PowerShell writes it, is put into binaryData: the last valid policy
// stays, not the default of its key.
func TestBinaryPolicyIsInvalid(t *testing.T) {
	cm := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: "sync-operator", Name: "sync-operator-policy"},
		Data:       map[string]string{"concurrency": "2"}, BinaryData: map[string][]byte{"allowedNamespaces": []byte("\xff\xfef\x00")},
	}
	c := fake.NewClientBuilder().WithObjects(cm).Build()
	r := &Reader{Cached: c, Live: c, ConfigMapKey: client.ObjectKeyFromObject(cm), Now: time.Now}
	got, err := r.readConfigMap(t.Context(), v1alpha1.SyncLedgerStatus{Policy: map[string]string{"concurrency": "1", "allowedNamespaces": "farm"}}, false)
	require.NoError(t, err)
	assert.Equal(t, v1alpha1.ReasonInvalid, got.reason)
	assert.Contains(t, got.message, "allowedNamespaces: its text is in binaryData")
	require.NotNil(t, got.own)
	assert.EqualValues(t, 1, got.own.Concurrency)
	assert.False(t, got.own.AllowedNamespaces.Allow("lab"))
}

// A SyncLedger whose condition is too long cannot be stored: nothing would be downloaded any
// more, and nothing would say why.
func TestMessagesAboutConfigMapAreBounded(t *testing.T) {
	many := map[string]string{"concurrency": "2"}
	for i := range 4000 {
		many[fmt.Sprintf("key-%0200d", i)] = "x"
	}
	for name, data := range map[string]map[string]string{"keys": many, "a value": {"concurrency": strings.Repeat("x", 16000)}} {
		cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "sync-operator", Name: "sync-operator-policy"}, Data: data}
		c := fake.NewClientBuilder().WithObjects(cm).Build()
		recorder := events.NewFakeRecorder(10)
		r := &Reader{Cached: c, Live: c, Events: recorder, InForce: &InForce{}, ConfigMapKey: client.ObjectKeyFromObject(cm), Now: time.Now}
		ledger := &v1alpha1.SyncLedger{Status: &v1alpha1.SyncLedgerStatus{}}
		var logged []string
		ctx := ctrl.LoggerInto(t.Context(), funcr.New(func(_, line string) { logged = append(logged, line) }, funcr.Options{}))
		got, err := r.Read(ctx, ledger)
		require.NoError(t, err)
		assert.Len(t, logged, len(recorder.Events), "each event is logged")
		status := v1alpha1.SyncLedgerStatus{}
		got.SetStatus(&status, 1)
		for _, condition := range status.Conditions {
			assert.LessOrEqual(t, len(condition.Message), maxMessageBytes, name)
		}
		said := len(recorder.Events)
		_, err = r.Read(t.Context(), &v1alpha1.SyncLedger{Status: &status})
		require.NoError(t, err)
		assert.Len(t, recorder.Events, said, "it is said once")
		for range said {
			assert.LessOrEqual(t, len(<-recorder.Events), 1024)
		}
	}
}
