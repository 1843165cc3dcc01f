package startup

import (
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// maxNoteBytes is below the limit of the API server, which refuses events with longer notes.
const maxNoteBytes = 1000

// NewEventRecorder returns the recorder of a program. It bounds the notes of events and redacts
// URLs in them.
func NewEventRecorder(manager interface {
	GetEventRecorder(name string) events.EventRecorder
}, program string) events.EventRecorder {
	return sanitizedRecorder{manager.GetEventRecorder(program)}
}

type sanitizedRecorder struct{ next events.EventRecorder }

// Eventf implements events.EventRecorder.
func (r sanitizedRecorder) Eventf(regarding, related runtime.Object, eventType, reason, action, note string, args ...any) {
	r.next.Eventf(regarding, related, eventType, reason, action, "%s", v1alpha1.SanitizeText(fmt.Sprintf(note, args...), maxNoteBytes))
}
