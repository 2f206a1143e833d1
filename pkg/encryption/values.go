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

// Values encrypts and decrypts stored values; it is what store.Config.Values wants. It is safe for concurrent use.
type Values struct {
	// resources are the kinds with storage keys of their own form, by the part of the key behind /registry/.
	resources map[string]schema.GroupResource

	// writes is held, shared, from the encryption of a value until it is written, and alone to change the settings: when use has
	// returned, nothing that was encrypted with the earlier ones is still on its way.
	writes  sync.RWMutex
	unlock  func()
	current atomic.Pointer[prepared] // nil without encryption; it does not become or cease to be nil once values are written
}

// prepared is settings with the rules of the kinds in the table looked up beforehand.
type prepared struct {
	*settings
	byPart map[string]*rule // nil for a kind without a rule
}

// NewValues encrypts nothing yet, and decrypts nothing.
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

// use makes the settings those in use. Every write that was encrypted with the earlier ones has ended when it returns.
func (v *Values) use(s *settings) {
	p := v.prepare(s)
	v.writes.Lock()
	defer v.writes.Unlock()
	v.current.Store(p)
}

const registry = "/registry/"

// rule gives the rule of a storage key, nil if there is none.
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

// parts gives the first part of a key behind /registry/, and the first two: "services" and "services/specs".
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

// custom is the resource of the two parts "group/plural", the form of custom resources' keys. Their groups have a dot.
func custom(two string) (schema.GroupResource, bool) {
	group, plural, ok := strings.Cut(two, "/")
	return schema.GroupResource{Group: group, Resource: plural}, ok && strings.Contains(group, ".")
}

// resource is that of a storage key as the configuration names it; empty if the key belongs to no kind that is known.
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

// Open implements store.Values. Errors match ErrNoKey or ErrDamaged.
func (v *Values) Open(key string, stored []byte) ([]byte, error) {
	plain, _, err := v.open(v.current.Load(), key, stored)
	return plain, err
}

// open also says whether the value is stored as it would be written with those settings, which may be nil.
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
