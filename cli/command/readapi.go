package command

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/pelotech/ot-fleet/api/readapi"
	"github.com/pelotech/ot-fleet/cli/connect"
)

// askReadAPI asks the hub's read API for what a screen can do without. Where it cannot be asked,
// unread says so and err is nil. err is its answer where it refuses what was asked.
func (e *environment) askReadAPI(ctx context.Context, hub *connect.Cluster, ask func(*connect.ReadAPI) error) (unread string, err error) {
	switch err := e.withReadAPI(ctx, hub, ask); {
	case err != nil && ctx.Err() == nil && !isRefusal(err):
		return fmt.Sprintf("From the hub's kinds alone, without its read API: %v", err), nil
	default:
		return "", err
	}
}

// withReadAPI asks it by the connection that is there, else by a new one: then ask is called twice.
func (e *environment) withReadAPI(ctx context.Context, hub *connect.Cluster, ask func(*connect.ReadAPI) error) (err error) {
	for isNew := false; ; {
		if e.api == nil {
			isNew = true
			e.api, err = e.OpenReadAPI(ctx, hub)
		}
		if err == nil {
			err = ask(e.api)
		}
		if err == nil || ctx.Err() != nil || isRefusal(err) {
			return err
		}
		e.closeReadAPI() // the replica may be gone, or the token at its end: look for the elected one
		if isNew {
			return err
		}
		err = nil
	}
}

// isRefusal reports whether an error is what the read API answers to a question about what is not
// there, or that is wrong; no other way of asking has another answer.
func isRefusal(err error) bool {
	answer, ok := errors.AsType[*readapi.Error](err)
	return ok && (errors.Is(err, readapi.ErrNotFound) || answer.Status == http.StatusBadRequest && errors.Is(err, readapi.ErrInvalid))
}

// notSeenYet: the read API does not know a FleetDiskImage that is there.
const notSeenYet = "From the hub's kinds alone: its read API has not seen this FleetDiskImage yet"

func (e *environment) closeReadAPI() {
	if e.api != nil {
		e.api.Close()
		e.api = nil
	}
}
