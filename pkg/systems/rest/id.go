package rest

import (
	"crypto/rand"
	"strings"

	"github.com/coracle-dev/coracle/pkg/systems/rest/view"
)

// suffixLength is the length of an object name's random end: 40 bits.
const suffixLength = 8

// newName returns a unique object name for a client's name, since Podling's names may be any text and need not be
// unique. An ID is never reused.
func newName(given string) string {
	return view.Stem(given) + "-" + strings.ToLower(rand.Text()[:suffixLength])
}
