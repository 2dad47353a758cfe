package main

import (
	"fmt"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/alecthomas/kong"
)

// daysOrWeeks finds the units of durations that time.ParseDuration does not know.
var daysOrWeeks = regexp.MustCompile(`([0-9]*\.?[0-9]+)([dw])`)

// parseDuration parses a duration such as 90s, 1h30m, 7d or 2w. A day has 24 hours.
func parseDuration(text string) (time.Duration, error) {
	inHours := daysOrWeeks.ReplaceAllStringFunc(text, func(part string) string {
		n, err := strconv.ParseFloat(part[:len(part)-1], 64)
		if err != nil {
			return part
		}
		n *= 24
		if strings.HasSuffix(part, "w") {
			n *= 7
		}
		return strconv.FormatFloat(n, 'f', -1, 64) + "h"
	})
	d, err := time.ParseDuration(inHours)
	if err != nil {
		return 0, fmt.Errorf("%q is not a duration: write it as 90s, 10m, 24h, 7d or 2w", text)
	}
	return d, nil
}

// durations has the parser of flags read all durations with parseDuration. The tag most:"1d" says how long one may be.
func durations() kong.Option {
	return kong.TypeMapper(reflect.TypeFor[time.Duration](), kong.MapperFunc(func(ctx *kong.DecodeContext, target reflect.Value) error {
		var text string
		if err := ctx.Scan.PopValueInto("duration", &text); err != nil {
			return err
		}
		d, err := parseDuration(text)
		target.SetInt(int64(d))
		if most := ctx.Value.Tag.Get("most"); err == nil && most != "" {
			limit, err := parseDuration(most)
			if err == nil && d > limit {
				err = fmt.Errorf("%s is too long: it must be at most %s", printable(text), most)
			}
			return err
		}
		return err
	}))
}

// durationText formats a duration as it is written: 2m rather than 2m0s.
func durationText(d time.Duration) string {
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}
