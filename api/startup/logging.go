package startup

import (
	"errors"
	"fmt"
	stdlog "log"
	"slices"
	"strings"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// maxLoggedBytes bounds each text in a log line.
const maxLoggedBytes = 8 << 10

// setLogger sets the logger of this program and of the libraries that it uses.
func setLogger(logger logr.Logger) {
	logger = logger.WithSink(newSanitizedSink(logger.GetSink()))
	ctrl.SetLogger(logger)
	klog.SetLogger(logger)
	stdlog.SetFlags(0)
	stdlog.SetOutput(lineLogger{logger})
}

// lineLogger logs what is written with the standard library's logger, as net/http does.
type lineLogger struct{ logger logr.Logger }

func (l lineLogger) Write(line []byte) (int, error) {
	l.logger.Info(strings.TrimSpace(string(line)))
	return len(line), nil
}

// sanitizedSink bounds the texts of log lines, and redacts URLs in them.
type sanitizedSink struct {
	logr.LogSink
	// values go in front of those of each line. They are kept as they are until there is one: each
	// reconcile has values, few have lines, and the sink beneath would encode the values at once.
	values []any
}

func newSanitizedSink(sink logr.LogSink) logr.LogSink {
	if deeper, ok := sink.(logr.CallDepthLogSink); ok {
		sink = deeper.WithCallDepth(1)
	}
	return sanitizedSink{LogSink: sink}
}

func (s sanitizedSink) Info(level int, message string, keysAndValues ...any) {
	s.LogSink.Info(level, sanitizeLogged(message), s.sanitizeValues(keysAndValues)...)
}

func (s sanitizedSink) Error(err error, message string, keysAndValues ...any) {
	if err != nil {
		err = errors.New(sanitizedResult(err.Error))
	}
	s.LogSink.Error(err, sanitizeLogged(message), s.sanitizeValues(keysAndValues)...)
}

func (s sanitizedSink) WithValues(keysAndValues ...any) logr.LogSink {
	s.values = slices.Concat(s.values, keysAndValues)
	return s
}

func (s sanitizedSink) WithName(name string) logr.LogSink {
	s.LogSink = s.LogSink.WithName(name)
	return s
}

func (s sanitizedSink) WithCallDepth(depth int) logr.LogSink {
	if deeper, ok := s.LogSink.(logr.CallDepthLogSink); ok {
		s.LogSink = deeper.WithCallDepth(depth)
	}
	return s
}

// sanitizeValues returns the values of a line, with texts sanitized. Objects are logged as namespace
// and name only.
func (s sanitizedSink) sanitizeValues(keysAndValues []any) []any {
	sanitized := slices.Concat(s.values, keysAndValues)
	for i, value := range sanitized {
		switch v := value.(type) {
		case string:
			value = sanitizeLogged(v)
		case []byte:
			value = sanitizeLogged(string(v))
		case error:
			value = sanitizedResult(v.Error)
		case []string:
			texts := make([]string, len(v))
			for j := range v {
				texts[j] = sanitizeLogged(v[j])
			}
			value = texts
		case fmt.Stringer:
			if _, isObject := value.(interface{ GetName() string }); !isObject {
				value = sanitizedResult(v.String)
			}
		}
		sanitized[i] = value
	}
	return sanitized
}

func sanitizeLogged(text string) string { return v1alpha1.SanitizeText(text, maxLoggedBytes) }

// sanitizedResult returns what an Error or String method returns, sanitized. It may be that
// of a nil pointer in an interface, which panics.
func sanitizedResult(text func() string) (sanitized string) {
	defer func() {
		if recover() != nil {
			sanitized = "<nil>"
		}
	}()
	return sanitizeLogged(text())
}
