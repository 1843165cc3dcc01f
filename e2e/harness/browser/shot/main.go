// Command shot takes a picture of a page of the dashboard, once it has drawn:
//
//	go run ./e2e/harness/browser/shot -url http://127.0.0.1:8089/ -out /tmp/fleet.png -dark
package main

import (
	"flag"
	"fmt"
	"net/url"
	"os"
	"time"

	"github.com/pelotech/ot-fleet/e2e/harness/browser"
)

func main() {
	address := flag.String("url", "http://127.0.0.1:8089/", "page")
	out := flag.String("out", "shot.png", "file to write")
	width := flag.Int64("width", 1280, "width in pixels")
	height := flag.Int64("height", 900, "height in pixels")
	dark := flag.Bool("dark", false, "prefer the dark theme")
	whole := flag.Bool("whole", false, "the whole page, however high")
	wait := flag.String("wait", "", "CSS selector to wait for")
	key := flag.String("click", "", "CSS selector to click on first")
	now := flag.String("now", "", "what the page takes for the time, as of a fleet that stands still")
	flag.Parse()
	o := browser.Options{Width: *width, Height: *height, Dark: *dark}
	if err := takePicture(*address, *out, *wait, *key, *now, *whole, o); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func takePicture(address, out, wait, click, now string, whole bool, o browser.Options) error {
	u, err := url.Parse(address)
	if err != nil {
		return err
	}
	o.Origin = u.Scheme + "://" + u.Host
	if now != "" {
		if o.Now, err = time.Parse(time.RFC3339, now); err != nil {
			return err
		}
	}
	b, err := browser.Start()
	if err != nil {
		return err
	}
	defer b.Stop()
	p, closePage, err := b.OpenUnwatched(o)
	if err != nil {
		return err
	}
	defer closePage()
	path := u.RequestURI()
	if u.Fragment != "" {
		path += "#" + u.Fragment
	}
	if err := p.Navigate(path); err != nil {
		return err
	}
	if wait == "" {
		// What a page shows while it loads is marked as busy.
		wait = "main:not(:has([aria-busy=true])), h1"
	}
	if err := p.AwaitCondition(fmt.Sprintf("document.querySelector(%q)", wait)); err != nil {
		return err
	}
	if click != "" {
		if err := p.AwaitCondition(fmt.Sprintf("(document.querySelector(%q)?.click(), true)", click)); err != nil {
			return err
		}
	}
	if err := p.AwaitQuiet(); err != nil {
		return err
	}
	picture, err := p.Capture(whole)
	if err != nil {
		return err
	}
	text, err := browser.EncodeSmall(picture)
	if err != nil {
		return err
	}
	for _, failure := range p.Failures() {
		fmt.Fprintln(os.Stderr, failure)
	}
	return os.WriteFile(out, text, 0o644)
}
