package admission

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"sync"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/openapi"

	"github.com/coracle-dev/coracle/pkg/kind"
)

// Schemas returns the OpenAPI 3 document of a served group and version as JSON.
type Schemas func(schema.GroupVersion) ([]byte, error)

// Discovery returns the part of a discovery client that policies use.
func (c cacheReads) Discovery() discovery.DiscoveryInterfaces {
	return discoveryReads{openapi: c.openapi}
}

type discoveryReads struct {
	discovery.DiscoveryInterfaces
	openapi openapi.Client
}

func (d discoveryReads) OpenAPIV3() openapi.Client { return d.openapi }

// openapiSource is the OpenAPI client of mutating policies, without HTTP. Upstream's plugin calls Paths every five
// seconds. Paths blocks until the kinds have changed, so that an idle cluster does no work.
type openapiSource struct {
	kinds   *kind.Catalog
	schemas Schemas
	done    <-chan struct{}

	mu       sync.Mutex
	changed  <-chan struct{} // closed when the kinds change after the last response
	answered map[string]openapi.GroupVersion
}

// Paths returns the groups and versions. After the first call, it blocks until they may have changed.
func (s *openapiSource) Paths() (map[string]openapi.GroupVersion, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.changed != nil {
		select {
		case <-s.changed:
		case <-s.done:
			return s.answered, nil
		}
	}
	table, changed := s.kinds.Watch()
	s.changed, s.answered = changed, documentsOf(table, s.schemas)
	return s.answered, nil
}

// documentsOf returns the groups and versions of a table by their path, as OpenAPI 3 discovery does.
func documentsOf(table *kind.Table, schemas Schemas) map[string]openapi.GroupVersion {
	out, content := map[string]openapi.GroupVersion{}, map[schema.GroupVersion][]string{}
	for _, r := range table.All() {
		content[r.GroupVersion()] = append(content[r.GroupVersion()], r.Kind+" "+r.Hash)
	}
	for gv, of := range content {
		path := "apis/" + gv.String()
		if gv.Group == "" {
			path = "api/" + gv.Version
		}
		out[path] = groupVersionSchema{
			gv, fmt.Sprintf("/openapi/v3/%s?hash=%X", path, sha256.Sum256(fmt.Append(nil, of))), schemas,
		}
	}
	return out
}

type groupVersionSchema struct {
	gv      schema.GroupVersion
	url     string
	schemas Schemas
}

func (g groupVersionSchema) ServerRelativeURL() string { return g.url }

func (g groupVersionSchema) Schema(string) ([]byte, error) {
	if g.schemas == nil {
		return nil, errors.New("this server has no OpenAPI documents")
	}
	return g.schemas(g.gv)
}
