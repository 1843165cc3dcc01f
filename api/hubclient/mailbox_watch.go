package hubclient

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"reflect"
	"strconv"
	"sync"
	"time"

	"golang.org/x/time/rate"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kjson "sigs.k8s.io/json"

	"github.com/pelotech/ot-fleet/api/transport"
	"github.com/pelotech/ot-fleet/api/trigger"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

const (
	// A watch is asked to end after minWatchTime to twice that, so that none hangs.
	minWatchTime = 5 * time.Minute
	// The wait after a failed list or watch doubles from minWatchRetry to maxWatchRetry, and
	// begins anew after watchRetryReset without one.
	minWatchRetry   = 800 * time.Millisecond
	maxWatchRetry   = 30 * time.Second
	watchRetryReset = 2 * time.Minute
	// maxEarlyEnds of watches are each followed by a list at once, and more by one per
	// earlyEndInterval: else a server that ends watches has the whole mailbox read all the time.
	// A proxy that ends what is idle for a minute costs no delay.
	maxEarlyEnds     = 3
	earlyEndInterval = 20 * time.Second
	// idleBufferBytes are read first of what a watch delivers. A decoder's buffer, as large as
	// the largest event that it has seen, is not held while nothing comes.
	idleBufferBytes = 512
)

// mailboxWatch lists the objects of one kind into the cache of a connection, and watches
// them from there.
type mailboxWatch struct {
	connection *Connection
	kind       cachedKind
	resource   string
	newObject  func() client.Object
	// started gets the outcome of the first watch, once; see setStarted.
	started    chan error
	hasStarted bool
	failures   watchFailures
	// version is the resourceVersion to watch from; empty to list first.
	version string
}

func (c *Connection) newWatch(like client.Object) (*mailboxWatch, error) {
	kind, err := kindOf(like)
	if err != nil {
		return nil, err
	}
	mapping, err := Mapper.RESTMapping(kind.GroupKind(), kind.Version)
	if err != nil {
		return nil, err
	}
	of := reflect.TypeOf(like).Elem()
	return &mailboxWatch{
		connection: c, kind: kind, resource: mapping.Resource.Resource,
		newObject: func() client.Object { return reflect.New(of).Interface().(client.Object) }, started: make(chan error, 1),
	}, nil
}

// run lists and watches until ctx ends.
func (w *mailboxWatch) run(ctx context.Context) {
	backoff := wait.Backoff{Duration: minWatchRetry, Cap: maxWatchRetry, Steps: 6, Factor: 2, Jitter: 1}
	retryDelay := backoff.DelayWithReset(clock.RealClock{}, watchRetryReset)
	earlyEnds := rate.NewLimiter(rate.Every(earlyEndInterval), maxEarlyEnds)
	for ctx.Err() == nil {
		var err error
		if w.version == "" {
			err = w.list(ctx)
		}
		if err == nil {
			err = w.watch(ctx)
		}
		if err == nil && w.version == "" {
			_ = trigger.Sleep(ctx, earlyEnds.Reserve().Delay())
		}
		if err == nil || ctx.Err() != nil {
			continue // the server ends watches after some minutes
		}
		if !utilnet.IsConnectionRefused(err) && !apierrors.IsTooManyRequests(err) {
			w.version = ""
		}
		w.reportFailure(ctx, err)
		select {
		case <-ctx.Done():
		case <-time.After(retryDelay()):
		}
	}
}

// setStarted records that the objects are listed and the server has accepted the first watch, or why
// that failed. Invariant: a connection is not established before its watches are accepted, or a server
// that refuses nothing but watches would be reached and lost again with each attempt.
func (w *mailboxWatch) setStarted(err error) {
	if !w.hasStarted {
		w.hasStarted = true
		w.failures = watchFailures{started: err == nil}
		w.started <- err
	}
}

// request returns a request for the kind's objects, whole or metadata only.
func (w *mailboxWatch) request(as string) *rest.Request {
	r := w.connection.watching.Get().Namespace(w.connection.endpoint.Namespace).Resource(w.resource)
	if w.kind.metadataOnly {
		r.SetHeader("Accept", acceptMetadata(as))
	}
	return r
}

// acceptMetadata is the header that asks for metadata, as that kind.
func acceptMetadata(as string) string { return "application/json;as=" + as + ";g=meta.k8s.io;v=v1" }

// listPage is a part of a list. Its objects are decoded one at a time.
type listPage struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`
	Items           []json.RawMessage `json:"items"`
}

// list reads the newest state page by page, so that each answer is small, and bounds all
// pages together. An older state from the API server's cache comes in one answer, and a
// streamed list is complete before any of it is bounded.
func (w *mailboxWatch) list(ctx context.Context) error {
	var all []keptObject
	var size int64
	for continueWith := ""; ; {
		r := w.request("PartialObjectMetadataList").Param("limit", strconv.Itoa(transport.MailboxPageSize))
		if continueWith != "" {
			r.Param("continue", continueWith)
		}
		result := r.Do(ctx)
		if err := result.Error(); err != nil {
			return err
		}
		text, err := result.Raw()
		if err != nil {
			return err
		}
		var page listPage
		if err := utiljson.Unmarshal(text, &page); err != nil {
			return fmt.Errorf("reading a list: %w", err)
		}
		if page.Kind != w.kind.Kind+"List" && (!w.kind.metadataOnly || page.Kind != "PartialObjectMetadataList") || page.ResourceVersion == "" {
			return fmt.Errorf("reading a list: %w: a %q", errAnotherObject, v1alpha1.SanitizeText(page.Kind, 64))
		}
		for _, item := range page.Items {
			o, err := w.decode(item)
			if err != nil {
				return fmt.Errorf("reading a list: %w", err)
			}
			kept := w.boundObject(o)
			all, size = append(all, kept), size+kept.bytes
		}
		if bound := exceededBound(len(all), size); bound != "" {
			err := &transport.LimitError{Request: "a list of the mailbox", Bound: bound}
			w.connection.reportExceededLimit(err)
			return err
		}
		switch continueWith = page.Continue; {
		case continueWith == "":
			w.connection.cache.setAll(w.kind, all)
			w.version = page.ResourceVersion
			w.boundMailbox(w.connection.cache.exceededBound())
			return nil
		case len(page.Items) == 0:
			return errors.New("reading a list: a page is empty, and not the last")
		}
	}
}

// decode returns an object of the kind in the mailbox.
func (w *mailboxWatch) decode(text []byte) (client.Object, error) {
	o := w.newObject()
	if err := utiljson.Unmarshal(text, o); err != nil {
		return nil, err
	}
	return o, w.checkObject(o)
}

// checkObject returns errAnotherObject for one that is not of the kind, or not in the mailbox.
func (w *mailboxWatch) checkObject(o client.Object) error {
	if kind := o.GetObjectKind().GroupVersionKind().Kind; kind != "" && kind != w.kind.Kind && (!w.kind.metadataOnly || kind != "PartialObjectMetadata") {
		return fmt.Errorf("%w: a %q", errAnotherObject, v1alpha1.SanitizeText(kind, 64))
	}
	if o.GetName() == "" || o.GetNamespace() != w.connection.endpoint.Namespace {
		return errAnotherObject
	}
	return nil
}

// boundObject bounds an object before it is stored. One that is too large is emptied, and the
// connection ends.
func (w *mailboxWatch) boundObject(o client.Object) keptObject {
	kept, tooLarge := boundObject(o, w.kind)
	if tooLarge {
		w.connection.reportExceededLimit(&transport.LimitError{Request: "a request for the mailbox", Bound: fmt.Sprintf("has an object of more than %d MiB", v1alpha1.MaxMailboxObjectBytes>>20)})
	}
	return kept
}

// boundMailbox ends the connection if all objects together exceed a bound.
func (w *mailboxWatch) boundMailbox(bound string) {
	if bound != "" {
		w.connection.reportExceededLimit(&transport.LimitError{Request: "a watch of the mailbox", Bound: bound})
	}
}

// watch returns nil when the server ends the watch, or the connection to it breaks. It
// continues from the last version after the time that was asked for. Before, it lists: an API
// server whose CustomResourceDefinitions were changed ends watches that began before, and until
// then delivers objects without their new fields, and with the newest resourceVersion.
func (w *mailboxWatch) watch(ctx context.Context) error {
	began, asked := time.Now(), (minWatchTime + rand.N(minWatchTime)).Truncate(time.Second)
	body, err := w.request("PartialObjectMetadata").
		Param("watch", "true").Param("allowWatchBookmarks", "true").Param("resourceVersion", w.version).
		Param("timeoutSeconds", strconv.Itoa(int(asked.Seconds()))).
		Stream(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = body.Close() }()
	w.setStarted(nil)
	useful := false
	err = readEvents(body, w.newEventObject, func(event watchEvent) error {
		changed, err := w.apply(ctx, event)
		useful = useful || changed
		return err
	})
	switch {
	case errors.As(err, new(apierrors.APIStatus)):
		return err
	case err != nil && !utilnet.IsProbableEOF(err) && !utilnet.IsTimeout(err):
		return fmt.Errorf("reading an event of a watch: %w", err)
	}
	switch took := time.Since(began); {
	case took < minWatchDuration && !useful:
		return errShortWatch
	case took >= minWatchDuration && took < asked:
		w.version = ""
	}
	return nil
}

// watchEvent is one event of a watch: Object is what newEventObject returns for its type.
type watchEvent struct {
	Type   watch.EventType
	Object any
}

// newEventObject returns what the object of such an event is.
func (w *mailboxWatch) newEventObject(of watch.EventType) any {
	switch of {
	case watch.Error:
		return &metav1.Status{}
	case watch.Bookmark:
		return &metav1.PartialObjectMetadata{}
	}
	return w.newObject()
}

// readEvents calls do for each event until the stream ends, and returns why.
func readEvents(from io.Reader, newObject func(watch.EventType) any, do func(watchEvent) error) error {
	var idle [idleBufferBytes]byte
	for {
		n, err := from.Read(idle[:])
		if n == 0 && err != nil {
			return err
		}
		if first := bytes.TrimLeft(idle[:n], jsonSpace); len(first) > 0 {
			if err := readPendingEvents(first, from, newObject, do); err != nil {
				return err
			}
		}
	}
}

// jsonSpace is what may be between events.
const jsonSpace = " \t\r\n"

// readPendingEvents calls do for the event that begins with first, and for those that were read with it.
func readPendingEvents(first []byte, from io.Reader, newObject func(watch.EventType) any, do func(watchEvent) error) error {
	d := eventDecoders.Get().(*eventDecoder)
	d.first.Reset(first)
	d.from = from
	for largest := int64(0); ; {
		began := d.InputOffset()
		event, err := decodeEvent(d.Decoder, newObject)
		if err != nil {
			return err
		}
		if err := do(event); err != nil {
			return err
		}
		largest = max(largest, d.InputOffset()-began)
		if d.hasMore() {
			continue
		}
		if largest <= maxKeptEventBytes {
			d.first.Reset(nil)
			d.from = nil
			eventDecoders.Put(d)
		}
		return nil
	}
}

// eventDecoder decodes what one stream delivers, then what another one does. Only while an event is
// read does a stream have one, with a buffer as large as its events.
type eventDecoder struct {
	kjson.Decoder
	first bytes.Reader
	from  io.Reader
	ahead [16]byte
}

// maxKeptEventBytes is the largest event after which an eventDecoder is used again.
const maxKeptEventBytes = 64 << 10

// Invariant: those in the pool have read whole events, and nothing but space after them.
var eventDecoders = sync.Pool{New: func() any {
	d := &eventDecoder{}
	d.Decoder = kjson.NewDecoderCaseSensitivePreserveInts(d)
	return d
}}

// Read implements io.Reader for the Decoder.
func (d *eventDecoder) Read(into []byte) (int, error) {
	if d.first.Len() > 0 {
		return d.first.Read(into)
	}
	return d.from.Read(into)
}

// hasMore reports whether more than space was read after the event.
func (d *eventDecoder) hasMore() bool {
	if d.first.Len() > 0 {
		return true
	}
	for read := d.Buffered(); ; {
		n, err := read.Read(d.ahead[:])
		if len(bytes.TrimLeft(d.ahead[:n], jsonSpace)) > 0 {
			return true
		}
		if err != nil {
			return false
		}
	}
}

// errNoEvent: what a watch delivers is no event.
var errNoEvent = errors.New("it is no event of a watch")

// decodeEvent decodes {"type": …, "object": …}. The object is decoded as it is read, since API servers
// write the type first: to find its end, and then decode it, takes twice the time. Invariant: the object
// is what its type says, whatever a server sends: neither is said twice.
func decodeEvent(from kjson.Decoder, newObject func(watch.EventType) any) (event watchEvent, err error) {
	began := false
	defer func() {
		if began && errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
	}()
	if token, err := from.Token(); err != nil {
		return event, err
	} else if token != json.Delim('{') {
		return event, errNoEvent
	}
	began = true
	var untyped json.RawMessage
	for from.More() {
		name, err := from.Token()
		if err != nil {
			return event, err
		}
		switch {
		case name == "type" && event.Type != "", name == "object" && (event.Object != nil || untyped != nil):
			err = errNoEvent
		case name == "type":
			err = from.Decode(&event.Type)
		case name == "object" && event.Type != "":
			event.Object = newObject(event.Type)
			err = from.Decode(event.Object)
		default:
			var skipped json.RawMessage
			if err = from.Decode(&skipped); name == "object" {
				untyped = skipped
			}
		}
		if err != nil {
			return event, err
		}
	}
	if _, err := from.Token(); err != nil { // the end of the event
		return event, err
	}
	if event.Object == nil {
		event.Object = newObject(event.Type)
		if untyped != nil {
			err = utiljson.Unmarshal(untyped, event.Object)
		}
	}
	return event, err
}

// apply applies an event to the cache. It reports whether the event was one of a change.
// An object that was not asked for is dropped.
func (w *mailboxWatch) apply(ctx context.Context, event watchEvent) (changed bool, err error) {
	switch event.Type {
	case watch.Error:
		return false, &apierrors.StatusError{ErrStatus: *event.Object.(*metav1.Status)}
	case watch.Bookmark:
		w.setVersion(event.Object.(*metav1.PartialObjectMetadata))
		return false, nil
	case watch.Added, watch.Modified, watch.Deleted:
	default:
		return false, nil
	}
	o := event.Object.(client.Object)
	if err := w.checkObject(o); err != nil {
		w.reportFailure(ctx, err)
		return false, nil
	}
	w.setVersion(o)
	if event.Type == watch.Deleted {
		w.connection.cache.remove(w.kind, o)
		return true, nil
	}
	w.boundMailbox(w.connection.cache.set(w.kind, w.boundObject(o)))
	return true, nil
}

func (w *mailboxWatch) setVersion(o client.Object) {
	if version := o.GetResourceVersion(); version != "" {
		w.version = version
	}
}
