package encryption

import (
	"bytes"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/coracle-dev/coracle/pkg/kind"
)

// Values encrypts and decrypts stored values. It implements store.Values and is safe for concurrent use.
type Values struct {
	// resources maps the part of storage keys after /registry/ to the resource.
	resources map[string]schema.GroupResource

	// writes is read-locked from the encryption of a value until it is written, and write-locked to change the
	// settings. When use returns, no write with earlier settings is in flight.
	writes  sync.RWMutex
	unlock  func()
	current atomic.Pointer[prepared] // nil without encryption, not set or unset once values are written
}

// prepared is settings with the rules of known kinds looked up in advance.
type prepared struct {
	*settings
	byPart map[string]*rule // nil for a kind without a rule
}

// NewValues returns Values without a configuration.
func NewValues(t *kind.Table) *Values {
	v := &Values{resources: map[string]schema.GroupResource{}}
	v.unlock = v.writes.RUnlock
	for _, r := range t.All() {
		if r.StoredAs == nil {
			v.resources[r.Keys] = r.GR()
		}
	}
	return v
}

func (v *Values) prepare(s *settings) *prepared {
	p := &prepared{settings: s, byPart: make(map[string]*rule, len(v.resources))}
	for part, gr := range v.resources {
		p.byPart[part] = s.rule(gr)
	}
	return p
}

// use puts settings into use. When it returns, all writes encrypted with earlier settings have finished.
func (v *Values) use(s *settings) {
	p := v.prepare(s)
	v.writes.Lock()
	defer v.writes.Unlock()
	v.current.Store(p)
}

const registry = "/registry/"

func (p *prepared) rule(key string) *rule {
	part, two, ok := parts(key)
	if !ok {
		return nil
	}
	if r, ok := p.byPart[part]; ok {
		return r
	}
	if r, ok := p.byPart[two]; ok {
		return r
	}
	if gr, ok := custom(two); ok {
		return p.settings.rule(gr)
	}
	return nil
}

// parts returns the first segment of a key after /registry/, and the first two: "services" and "services/specs".
func parts(key string) (one, two string, ok bool) {
	rest, ok := strings.CutPrefix(key, registry)
	if !ok {
		return "", "", false
	}
	i := strings.IndexByte(rest, '/')
	if i < 0 {
		return "", "", false
	}
	if j := strings.IndexByte(rest[i+1:], '/'); j >= 0 {
		return rest[:i], rest[:i+1+j], true
	}
	return rest[:i], "", true
}

// custom returns the resource of the segments "group/plural", the form of custom resources' keys, whose groups have a
// dot.
func custom(two string) (schema.GroupResource, bool) {
	group, plural, ok := strings.Cut(two, "/")
	return schema.GroupResource{Group: group, Resource: plural}, ok && strings.Contains(group, ".")
}

// resource returns the resource of a storage key as named in the configuration; empty if its kind is unknown.
func (v *Values) resource(key string) string {
	one, two, ok := parts(key)
	if !ok {
		return ""
	}
	for _, part := range []string{one, two} {
		if gr, ok := v.resources[part]; ok {
			return gr.String()
		}
	}
	if gr, ok := custom(two); ok {
		return gr.String()
	}
	return ""
}

func nothing() {}

// Seal implements store.Values.
func (v *Values) Seal(key string, plain []byte) (stored []byte, done func(), err error) {
	if v.current.Load() == nil {
		return plain, nothing, nil
	}
	v.writes.RLock()
	if r := v.current.Load().rule(key); r != nil {
		if plain, err = r.seal(key, plain); err != nil {
			v.unlock()
			return nil, nil, err
		}
	}
	return plain, v.unlock, nil
}

// Open implements store.Values. Errors match ErrNoKey, ErrDamaged or kms.ErrUnavailable.
func (v *Values) Open(key string, stored []byte) ([]byte, error) {
	for {
		p := v.current.Load()
		plain, _, err := v.open(p, key, stored)
		if err == nil || v.current.Load() == p {
			return plain, err
		}
		// The settings were replaced meanwhile, which closed the earlier plugins.
	}
}

// open also reports whether the value is stored as p would write it. p may be nil.
func (v *Values) open(p *prepared, key string, stored []byte) (plain []byte, current bool, err error) {
	if p != nil {
		if r := p.rule(key); r != nil {
			return r.open(key, stored)
		}
	}
	if bytes.HasPrefix(stored, []byte(encrypted)) {
		return nil, false, fmt.Errorf("it is encrypted with the %s: %w", labelOf(stored), ErrNoKey)
	}
	return stored, true, nil
}
