package apiserver

import (
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/munnerz/goautoneg"
	apidiscovery "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/handlers/negotiation"
)

type media uint8

const (
	mediaJSON media = iota
	mediaYAML
	mediaProto
)

const (
	typeJSON  = "application/json"
	typeYAML  = "application/yaml"
	typeProto = "application/vnd.kubernetes.protobuf"
)

func (m media) String() string { return [...]string{typeJSON, typeYAML, typeProto}[m] }

// may is the set of forms that an endpoint supports.
type may uint8

const (
	mayProto     may = 1 << iota // protobuf
	mayTable                     // Table and PartialObjectMetadata(List)
	mayStream                    // watch: no YAML
	mayAggregate                 // APIGroupDiscoveryList
)

// answer is the negotiated form of a response.
type answer struct {
	media  media
	pretty bool
	// as is Table, PartialObjectMetadata(List) of meta.k8s.io, APIGroupDiscoveryList of apidiscovery.k8s.io, or
	// empty.
	as schema.GroupVersionKind
}

// discoveryList is the kind of aggregated discovery (KEP-3352).
const discoveryList = "APIGroupDiscoveryList"

// mediaType returns the response's Content-Type. As upstream, it names the kind only for discovery.
func (a answer) mediaType() string {
	if a.as.Kind == discoveryList {
		return a.media.String() + ";g=" + a.as.Group + ";v=" + a.as.Version + ";as=" + a.as.Kind
	}
	return a.media.String()
}

type acceptKey struct {
	header string
	may    may
}

// accepts caches parsed Accept headers, of which clients send few different ones: about mostAccepts headers of at
// most longestAccept bytes.
var accepts struct { //nolint:gochecknoglobals // a memo of a pure function
	sync.Map
	n atomic.Int32
}

const (
	mostAccepts   = 512
	longestAccept = 512
)

// negotiate returns the form of the response. The error is a Status 406.
func negotiate(req *http.Request, can may) (answer, error) {
	header := req.Header.Get("Accept")
	var a answer
	if header != "" && header != typeJSON && header != "*/*" {
		key := acceptKey{header, can}
		if v, ok := accepts.Load(key); ok {
			a = v.(answer)
		} else {
			var ok bool
			if a, ok = parseAccept(header, can); !ok {
				supported := []string{typeJSON, typeYAML, typeProto}
				if can&mayStream != 0 {
					supported = []string{typeJSON + ";stream=watch", typeProto + ";stream=watch"}
				}
				return a, negotiation.NewNotAcceptableError(supported)
			}
			if len(header) <= longestAccept && accepts.n.Load() < mostAccepts {
				accepts.n.Add(1)
				accepts.Store(key, a)
			}
		}
	}
	if can&mayStream == 0 && a.media == mediaJSON && !a.pretty {
		a.pretty = wantsPretty(req)
	}
	return a, nil
}

func parseAccept(header string, can may) (answer, bool) {
clauses:
	for _, c := range goautoneg.ParseAccept(header) {
		var a answer
		switch c.Type + "/" + c.SubType {
		case typeJSON, "*/*", "application/*":
		case typeYAML:
			if can&mayStream != 0 {
				continue
			}
			a.media = mediaYAML
		case typeProto:
			a.media = mediaProto
		default:
			continue
		}
		for k, v := range c.Params {
			switch k {
			case "as":
				a.as.Kind = v
			case "g":
				a.as.Group = v
			case "v":
				a.as.Version = v
			case "pretty":
				a.pretty = v == "1"
			case "stream":
				if v != "" && v != "watch" {
					continue clauses
				}
			}
		}
		switch a.as.Kind {
		case "":
			if a.as != (schema.GroupVersionKind{}) || (a.media == mediaProto && can&mayProto == 0) {
				continue
			}
		case "Table", "PartialObjectMetadata", "PartialObjectMetadataList":
			if can&mayTable == 0 || a.as.Group != metav1.GroupName || (a.as.Version != "v1" && a.as.Version != "v1beta1") {
				continue
			}
			if a.as.Kind == "Table" && a.media == mediaProto {
				continue
			}
		case discoveryList:
			if can&mayAggregate == 0 || a.as.GroupVersion() != apidiscovery.SchemeGroupVersion {
				continue
			}
		default:
			continue
		}
		return a, true
	}
	return answer{}, false
}

// wantsPretty returns the pretty parameter, or, without one, whether the user agent is a browser, curl or Wget, as
// upstream.
func wantsPretty(req *http.Request) bool {
	if strings.Contains(req.URL.RawQuery, "pretty") {
		if v := req.URL.Query().Get("pretty"); v != "" {
			b, _ := strconv.ParseBool(v)
			return b
		}
	}
	agent := req.UserAgent()
	return strings.HasPrefix(agent, "curl") || strings.HasPrefix(agent, "Wget") || strings.HasPrefix(agent, "Mozilla/5.0")
}

func itoa(n int64) string { return strconv.FormatInt(n, 10) }
