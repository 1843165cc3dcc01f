package browser

import (
	"bytes"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"math"
	"slices"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"
)

// Capture returns a picture of what the page shows, or of the whole page, once its fonts are
// loaded and nothing on it moves.
func (p *Page) Capture(whole bool) (image.Image, error) {
	if err := p.AwaitCondition("document.fonts.status === 'loaded' && document.getAnimations().every((a) => a.playState !== 'running' || a.effect?.getComputedTiming().endTime === Infinity)"); err != nil {
		return nil, err
	}
	params := page.CaptureScreenshotParams{Format: page.CaptureScreenshotFormatPng}
	if whole {
		size, err := chromedp.Run(p.ctx, chromedp.Evaluate[[]float64]("[document.documentElement.scrollWidth, document.documentElement.scrollHeight, devicePixelRatio]"))
		if err != nil {
			return nil, err
		}
		if _, err := chromedp.Call(p.ctx, emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{
			Width: int64(size[0]), Height: int64(size[1]), DeviceScaleFactor: size[2],
		}); err != nil {
			return nil, err
		}
		if err := p.AwaitCondition(fmt.Sprintf("innerHeight === %d", int64(size[1]))); err != nil {
			return nil, err
		}
	}
	shot, err := chromedp.Call(p.ctx, page.CaptureScreenshot, params)
	if err != nil {
		return nil, fmt.Errorf("capturing a picture: %w", err)
	}
	return png.Decode(bytes.NewReader(shot.Data))
}

// pixelThreshold is how much a channel of a pixel may differ: the edges of text do.
const pixelThreshold = 40

// Difference returns the share of pixels in which two pictures differ: 1 for other sizes.
func Difference(a, b image.Image) float64 {
	if a.Bounds().Size() != b.Bounds().Size() {
		return 1
	}
	size, differing := a.Bounds().Size(), 0
	for y := range size.Y {
		for x := range size.X {
			if differs(a.At(a.Bounds().Min.X+x, a.Bounds().Min.Y+y), b.At(b.Bounds().Min.X+x, b.Bounds().Min.Y+y)) {
				differing++
			}
		}
	}
	return float64(differing) / float64(size.X*size.Y)
}

func differs(a, b color.Color) bool {
	r1, g1, b1, _ := a.RGBA()
	r2, g2, b2, _ := b.RGBA()
	far := func(x, y uint32) bool { return math.Abs(float64(x>>8)-float64(y>>8)) > pixelThreshold }
	return far(r1, r2) || far(g1, g2) || far(b1, b2)
}

// paletteBits is how many bits of each channel the colors of a small picture have, where it
// has too many.
const paletteBits = 5

// EncodeSmall encodes a picture with a palette of at most 256 colors: the most frequent ones.
func EncodeSmall(picture image.Image) ([]byte, error) {
	bounds := picture.Bounds()
	counts := map[color.RGBA]int{}
	for y := bounds.Min.Y; y < bounds.Max.Y; y++ {
		for x := bounds.Min.X; x < bounds.Max.X; x++ {
			counts[toRGBA(picture.At(x, y))]++
		}
	}
	palette := choosePalette(counts)
	small := image.NewPaletted(bounds, palette)
	index := map[color.RGBA]uint8{}
	for y := bounds.Min.Y; y < bounds.Max.Y; y++ {
		for x := bounds.Min.X; x < bounds.Max.X; x++ {
			c := toRGBA(picture.At(x, y))
			at, known := index[c]
			if !known {
				at = uint8(palette.Index(c))
				index[c] = at
			}
			small.SetColorIndex(x, y, at)
		}
	}
	var text bytes.Buffer
	if err := (&png.Encoder{CompressionLevel: png.BestCompression}).Encode(&text, small); err != nil {
		return nil, err
	}
	return text.Bytes(), nil
}

func toRGBA(c color.Color) color.RGBA {
	r, g, b, _ := c.RGBA()
	return color.RGBA{uint8(r >> 8), uint8(g >> 8), uint8(b >> 8), 0xff}
}

// choosePalette takes the most frequent color of each of the most frequent groups of similar
// colors.
func choosePalette(counts map[color.RGBA]int) color.Palette {
	type group struct {
		color       color.RGBA
		most, total int
	}
	groups := map[color.RGBA]*group{}
	for c, n := range counts {
		key := c
		if len(counts) > 256 {
			const mask = 0xff << (8 - paletteBits) & 0xff
			key = color.RGBA{c.R & mask, c.G & mask, c.B & mask, 0xff}
		}
		g := groups[key]
		if g == nil {
			g = &group{}
			groups[key] = g
		}
		g.total += n
		if n > g.most || n == g.most && isBefore(c, g.color) {
			g.color, g.most = c, n
		}
	}
	sorted := make([]*group, 0, len(groups))
	for _, g := range groups {
		sorted = append(sorted, g)
	}
	slices.SortFunc(sorted, func(a, b *group) int {
		if a.total != b.total {
			return b.total - a.total
		}
		if isBefore(a.color, b.color) {
			return -1
		}
		return 1
	})
	var palette color.Palette
	for _, g := range sorted[:min(256, len(sorted))] {
		palette = append(palette, g.color)
	}
	return palette
}

func isBefore(a, b color.RGBA) bool {
	return uint32(a.R)<<16|uint32(a.G)<<8|uint32(a.B) < uint32(b.R)<<16|uint32(b.G)<<8|uint32(b.B)
}
