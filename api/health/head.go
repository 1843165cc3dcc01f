package health

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"time"
)

// HeadAnswerFile is where SendHead leaves its answer: the termination message of a Pod, which
// whoever may read the Pod can read without its logs.
const HeadAnswerFile = "/dev/termination-log"

// headTimeout bounds the request, and the redirects that it follows.
const headTimeout = 30 * time.Second

// HeadAnswer is what a URL answered.
type HeadAnswer struct {
	// Status is 0 where there was no answer; Error says why.
	Status       int    `json:"status,omitempty"`
	Milliseconds int64  `json:"milliseconds"`
	Bytes        int64  `json:"bytes,omitempty"`
	Error        string `json:"error,omitempty"`
}

// SendHead sends a HEAD request as an importer would connect: through the proxy of the
// environment, and with certificates verified. It sends no credential. The answer goes to
// standard output, and to file if that exists.
func SendHead(ctx context.Context, url, file string) error {
	ctx, cancel := context.WithTimeout(ctx, headTimeout)
	defer cancel()
	text, err := json.Marshal(requestHead(ctx, url))
	if err != nil {
		return fmt.Errorf("encoding the answer of the URL: %w", err)
	}
	fmt.Fprintln(os.Stdout, string(text))
	if _, err := os.Stat(file); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err := os.WriteFile(file, text, 0o600); err != nil {
		return fmt.Errorf("writing the answer of the URL: %w", err)
	}
	return nil
}

func requestHead(ctx context.Context, url string) (answer HeadAnswer) {
	request, err := http.NewRequestWithContext(ctx, http.MethodHead, url, nil)
	if err != nil {
		answer.Error = err.Error()
		return answer
	}
	client := &http.Client{Transport: &http.Transport{Proxy: http.ProxyFromEnvironment, DisableKeepAlives: true, MaxResponseHeaderBytes: maxHeadBytes}}
	start := time.Now()
	response, err := client.Do(request)
	answer.Milliseconds = time.Since(start).Milliseconds()
	if err != nil {
		answer.Error = err.Error()
		return answer
	}
	_ = response.Body.Close()
	answer.Status, answer.Bytes = response.StatusCode, max(0, response.ContentLength)
	return answer
}

// maxHeadBytes bounds the headers of the answer.
const maxHeadBytes = 64 << 10
