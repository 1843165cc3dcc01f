package readapi

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"strings"
	"time"
)

const (
	// maxEventBytes bounds a line of a stream.
	maxEventBytes = 64 << 10
	// silenceTimeout is how long a stream may have no line, heartbeats included.
	silenceTimeout = 3 * HeartbeatInterval
	// Bounds of the wait before a stream is opened again.
	minReopenDelay = time.Second
	maxReopenDelay = 30 * time.Second
)

// errSilent is the error of a stream without heartbeats.
var errSilent = errors.New("the stream of events is silent")

// errStreamEnded is the error of a stream that the hub ended.
var errStreamEnded = errors.New("the stream of events ended")

// FollowEvents iterates over what changes, until the context is done. A stream that ends is
// opened again where it was, after a wait: the error of that is yielded, and more events
// follow. So a caller without events knows that what it shows may be out of date. It ends by
// itself only where no later attempt can have more success.
func (c *Client) FollowEvents(ctx context.Context) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		last, delay := "", minReopenDelay
		for ctx.Err() == nil {
			stopped := false
			err := c.stream(ctx, last, func(e Event) bool {
				last, delay = e.Seq, minReopenDelay
				stopped = !yield(e, nil)
				return !stopped
			})
			if stopped || ctx.Err() != nil || !yield(Event{}, err) || isFinal(err) {
				return
			}
			wait := delay
			var answered *Error
			if errors.As(err, &answered) {
				wait = max(wait, answered.RetryAfter)
			}
			timer := time.NewTimer(wait)
			select {
			case <-ctx.Done():
			case <-timer.C:
			}
			timer.Stop()
			delay = min(2*delay, maxReopenDelay)
		}
	}
}

// isFinal reports whether a later attempt has the same error.
func isFinal(err error) bool {
	return errors.Is(err, ErrUnauthorized) || errors.Is(err, ErrForbidden) || errors.Is(err, ErrUnsupported) || errors.Is(err, ErrInvalid)
}

// stream reads one stream after an event until it ends, which is an error.
func (c *Client) stream(ctx context.Context, after string, each func(Event) bool) error {
	const path = "events"
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	silence := time.AfterFunc(silenceTimeout, func() { cancel(errSilent) })
	defer silence.Stop()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, c.BaseURL+Root+path, nil)
	if err != nil {
		return askingError(path, err)
	}
	request.Header.Set("Accept", "text/event-stream")
	if after != "" {
		request.Header.Set("Last-Event-ID", after)
	}
	endless := *c.HTTP
	endless.Timeout = 0 // silenceTimeout bounds it
	response, err := endless.Do(request)
	if err != nil {
		return askingError(path, streamCause(ctx, err))
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		body, _ := readBounded(response.Body, maxErrorBytes)
		return newError(path, response, body)
	}
	lines := bufio.NewScanner(response.Body)
	lines.Buffer(nil, maxEventBytes)
	for lines.Scan() {
		silence.Reset(silenceTimeout)
		data, isData := strings.CutPrefix(lines.Text(), "data:")
		if !isData {
			continue // the id is in the data; comments are heartbeats
		}
		var e Event
		if err := json.Unmarshal([]byte(data), &e); err != nil {
			return fmt.Errorf("the events of the read API cannot be read: %w", err)
		}
		if !each(e) {
			return nil
		}
	}
	err = lines.Err()
	if err == nil {
		err = io.EOF
	}
	return fmt.Errorf("%w: %w", errStreamEnded, streamCause(ctx, err))
}

// streamCause returns why a stream was cancelled, or its own error.
func streamCause(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}
