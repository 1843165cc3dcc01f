package doctor

import (
	"fmt"
	"net/http"
	"strings"
)

func (e *examiner) secretKeys() {
	if len(e.Secrets) == 0 {
		e.addSkip("no image and no machine names a Secret")
	}
	for _, s := range e.Secrets {
		subject := "Secret " + s.Namespace + "/" + s.Name
		wanted := "needed by " + s.UsedBy
		if len(s.Keys) > 0 {
			wanted = "keys " + strings.Join(s.Keys, " and ") + ", " + wanted
		}
		switch {
		case s.Unread != "":
			e.add(Finding{Status: Skip, Subject: subject, Found: s.Unread, Unread: true})
		case s.Missing:
			e.addFail(subject, "does not exist", wanted, "")
		case len(s.Lacking) > 0:
			e.addFail(subject, "lacks "+strings.Join(s.Lacking, " and "), wanted, "")
		case s.Problem != "":
			e.addFail(subject, s.Problem, wanted, "")
		default:
			e.addPass(subject, "has what %s needs", s.UsedBy)
		}
	}
}

// sourceHead judges what a Pod in the cluster got from the URL of --probe.
func (e *examiner) sourceHead() {
	p := e.Probe
	switch {
	case p == nil && e.Asked.ProbeURL == "":
		e.addSkip("not asked for: --probe URL sends a HEAD request from a Pod in this cluster")
		return
	case p == nil:
		e.add(Finding{Status: Skip, Subject: e.Asked.ProbeURL, Found: e.Unread[SourceProbe], Unread: true})
		return
	case p.NotRun != "":
		e.add(Finding{Status: Skip, Subject: p.URL, Found: p.NotRun, Unread: true})
		return
	}
	const wanted = "an answer of 2xx to HEAD"
	switch {
	case p.Error != "":
		e.addFail(p.URL, p.Error, wanted, "")
	case p.Status >= http.StatusOK && p.Status < http.StatusMultipleChoices:
		e.addPass(p.URL, "answers HEAD with %d in %d ms from a Pod here", p.Status, p.Milliseconds)
	case p.Status == http.StatusForbidden, p.Status == http.StatusUnauthorized, p.Status == http.StatusMethodNotAllowed:
		e.addWarn(p.URL, fmt.Sprintf("answers HEAD with %d; a signed URL refuses HEAD, and credentials were not sent", p.Status), wanted, "")
	default:
		e.addFail(p.URL, fmt.Sprintf("answers HEAD with %d %s", p.Status, http.StatusText(p.Status)), wanted, "")
	}
}
