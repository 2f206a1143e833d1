package rest

import (
	"encoding/base64"
	"encoding/json"
	"net/http"
	"slices"
	"strings"

	ctrl "sigs.k8s.io/controller-runtime/pkg/client"
)

// continueHeader holds the value of the parameter continue for the next page.
const continueHeader = "X-Continue"

// paging are the parameters of lists. Without a limit a list is complete, as in Podling.
var paging = []Parameter{
	{"limit", "maximum number of items, 1 to 5000; all if absent", 0},
	{"continue", "the header " + continueHeader + " of the page before", ""},
}

// page writes a list, oldest first, one item at a time, so that the whole answer is never in memory. It sorts items,
// which must be the caller's own.
func page[T ctrl.Object](c *Call, items []T, convert func(T) any) error {
	limit, err := c.number("limit", 0, 1, maxPage)
	if err != nil {
		return err
	}
	after, err := parseContinue(c.Request.URL.Query().Get("continue"))
	if err != nil {
		return err
	}
	type placed struct {
		at   string
		item T
	}
	left := make([]placed, 0, len(items))
	for _, item := range items {
		if at := position(item); at > after {
			left = append(left, placed{at, item})
		}
	}
	slices.SortFunc(left, func(a, b placed) int { return strings.Compare(a.at, b.at) })
	if limit > 0 && len(left) > limit {
		left = left[:limit]
		c.w.Header().Set(continueHeader, base64.RawURLEncoding.EncodeToString([]byte(left[limit-1].at)))
	}
	items = items[:0]
	for _, p := range left {
		items = append(items, p.item)
	}
	return writeList(c, items, convert)
}

func writeList[T any](c *Call, items []T, convert func(T) any) error {
	c.w.Header().Set("Content-Type", "application/json")
	c.w.WriteHeader(http.StatusOK)
	buf := []byte{'['}
	for i, item := range items {
		data, err := json.Marshal(convert(item))
		if err != nil {
			return errHandled
		}
		if i > 0 {
			buf = append(buf, ',')
		}
		if buf = append(buf, data...); len(buf) > 32<<10 {
			if _, err := c.w.Write(buf); err != nil {
				return errHandled
			}
			buf = buf[:0]
		}
	}
	if _, err := c.w.Write(append(buf, ']', '\n')); err != nil {
		return errHandled
	}
	return nil
}

// position is the sort key of an item: its age, then its namespace and name.
func position(o ctrl.Object) string {
	return o.GetCreationTimestamp().UTC().Format("20060102150405") + " " + o.GetNamespace() + "/" + o.GetName()
}

// maxContinue bounds the parameter continue, in bytes.
const maxContinue = 1024

func parseContinue(value string) (string, error) {
	if len(value) > maxContinue {
		return "", Refuse(http.StatusBadRequest, "invalid continue parameter")
	}
	at, err := base64.RawURLEncoding.DecodeString(value)
	if err != nil {
		return "", Refuse(http.StatusBadRequest, "invalid continue parameter")
	}
	return string(at), nil
}

func pointers[T any](items []T) []*T {
	out := make([]*T, len(items))
	for i := range items {
		out[i] = &items[i]
	}
	return out
}
