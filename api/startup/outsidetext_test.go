package startup

import (
	"bytes"
	"errors"
	"log"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"

	"github.com/pelotech/ot-fleet/api/apitest"
)

const signedURL = "https://images/a?X-Amz-Signature=" + apitest.Secret

type fakeManager struct{ recorder *events.FakeRecorder }

func (m fakeManager) GetEventRecorder(string) events.EventRecorder { return m.recorder }

func TestEventsAreSanitized(t *testing.T) {
	recorder := events.NewFakeRecorder(1)
	NewEventRecorder(fakeManager{recorder}, "ot-agent").Eventf(nil, nil, "Warning", "NotFound", "Import", "%s failed: %s", signedURL, strings.Repeat("界%s", 1000))
	note := strings.TrimPrefix(<-recorder.Events, "Warning NotFound ")
	assert.Contains(t, note, "https://images/a?… failed: 界%s")
	assert.NotContains(t, note, apitest.Secret)
	assert.LessOrEqual(t, len(note), 1024, "what the API server accepts")
}

func TestLogsAreSanitized(t *testing.T) {
	var out bytes.Buffer
	setLogger(zap.New(zap.WriteTo(&out)))
	failed := &url.Error{Op: "Get", URL: signedURL, Err: errors.New("EOF")}
	ctrl.Log.WithName("x").WithValues("from", signedURL).Info("reading "+signedURL, "error", failed, "urls", []string{signedURL})
	ctrl.Log.Error(failed, "Failed to read", "huge", strings.Repeat("x", 1<<20))
	klog.ErrorS(failed, "of a library")
	klog.Errorf("of a library: %v", failed)
	log.Printf("of net/http: %v", failed)
	assert.NotContains(t, out.String(), apitest.Secret)
	assert.Equal(t, 8, strings.Count(out.String(), "https://images/a?…"), out.String())
	assert.Equal(t, 2, strings.Count(out.String(), "of a library"))
	assert.Contains(t, out.String(), "of net/http")
	assert.Less(t, out.Len(), 1<<16)
}

// Values are encoded with a line, in the order in which they were given, those of the line last.
func TestValuesOfLoggersAreApart(t *testing.T) {
	var out bytes.Buffer
	logger := zap.New(zap.WriteTo(&out))
	logger = logger.WithSink(newSanitizedSink(logger.GetSink())).WithValues("a", 1)
	first, second := logger.WithValues("b", 2), logger.WithValues("c", 3)
	first.WithName("first").Info("of both", "d", 4)
	second.Error(nil, "of the other")
	logger.Info("of none")
	assert.Contains(t, out.String(), `"msg":"of both","a":1,"b":2,"d":4}`)
	assert.Contains(t, out.String(), `"msg":"of the other","a":1,"c":3`)
	assert.Contains(t, out.String(), `"msg":"of none","a":1}`)
}

type pointedText struct{ text string }

func (p *pointedText) String() string { return p.text }

// An error or Stringer may be a nil pointer, whose method panics.
func TestNilPointersAreLogged(t *testing.T) {
	var out bytes.Buffer
	logger := zap.New(zap.WriteTo(&out))
	logger = logger.WithSink(newSanitizedSink(logger.GetSink()))
	var failed *url.Error
	var text *pointedText
	logger.WithValues("bound", text).Info("reading", "failure", failed, "text", text)
	logger.Error(failed, "Failed to read", "text", &pointedText{signedURL})
	assert.Equal(t, 4, strings.Count(out.String(), "<nil>"), out.String())
	assert.Contains(t, out.String(), "https://images/a?…")
}
