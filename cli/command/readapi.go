package command

import (
	"context"
	"fmt"

	"github.com/pelotech/ot-fleet/cli/connect"
)

// askReadAPI asks the hub's read API for what a screen can do without. Where it is not open
// to the caller, unread says so and err is nil.
func (e *environment) askReadAPI(ctx context.Context, hub *connect.Cluster, ask func(*connect.ReadAPI) error) (unread string, err error) {
	switch err := e.withReadAPI(ctx, hub, ask); {
	case err != nil && ctx.Err() == nil:
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
		if err == nil || ctx.Err() != nil {
			return err
		}
		e.closeReadAPI() // the replica may be gone, or the token at its end: look for the elected one
		if isNew {
			return err
		}
		err = nil
	}
}

func (e *environment) closeReadAPI() {
	if e.api != nil {
		e.api.Close()
		e.api = nil
	}
}
