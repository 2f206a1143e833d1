package upstream_test

import (
	"encoding/json"
	"net/url"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// subject is a kind that both servers serve, and an object of this kind.
type subject struct {
	stub
	namespaced bool
	resource   metav1.APIResource
	subs       []metav1.APIResource
}

// chosen is the label by which the test finds its own objects of cluster-scoped kinds.
const chosen = "alike"

const (
	merge      = "application/merge-patch+json"
	strategic  = "application/strategic-merge-patch+json"
	operations = "application/json-patch+json"
	apply      = "application/apply-patch+yaml"
	jsonType   = "application/json"
	yamlType   = "application/yaml"
	protoType  = "application/vnd.kubernetes.protobuf"
	cborType   = "application/cbor"
)

func (k *subject) root() string {
	if k.gvr.Group == "" {
		return "/api/" + k.gvr.Version
	}
	return "/apis/" + k.gvr.Group + "/" + k.gvr.Version
}

// collection is the path of the kind's objects, object the path of the stub's object.
func (k *subject) collection() string {
	if k.namespaced {
		return k.root() + "/namespaces/" + space + "/" + k.gvr.Resource
	}
	return k.root() + "/" + k.gvr.Resource
}

func (k *subject) object(name string) string { return k.collection() + "/" + name }

func (k *subject) name() string { return k.stub.object.GetName() }

func (k *subject) can(verb string) bool {
	for _, v := range k.resource.Verbs {
		if v == verb {
			return true
		}
	}
	return false
}

// with returns the stub with changes, as JSON.
func (k *subject) with(changes ...func(*unstructured.Unstructured)) string {
	o := k.stub.object.DeepCopy()
	for _, change := range changes {
		change(o)
	}
	text, err := json.Marshal(o.Object)
	if err != nil {
		panic(err) // it was read from text
	}
	return string(text)
}

func named(name string) func(*unstructured.Unstructured) {
	return func(o *unstructured.Unstructured) { o.SetName(name) }
}

func field(value any, path ...string) func(*unstructured.Unstructured) {
	return func(o *unstructured.Unstructured) {
		if err := unstructured.SetNestedField(o.Object, value, path...); err != nil {
			panic(err)
		}
	}
}

// mine returns a query that selects the test's own objects, with the parameters more.
func (k *subject) mine(more string) string {
	if k.namespaced {
		return "?" + more
	}
	return "?labelSelector=" + chosen + "&" + more
}

// creates are requests while no object exists; the last one creates it.
func (k *subject) creates() []exchange {
	c, good := k.collection(), k.with()
	post := func(what, query, body string, header ...string) exchange {
		return exchange{"create " + what, "POST", c + query, body, append([]string{"Content-Type", jsonType}, header...)}
	}
	generated := k.with(func(o *unstructured.Unstructured) { o.SetName(""); o.SetGenerateName("gen-") })
	all := []exchange{
		post("nothing", "", ""),
		post("null", "", "null"),
		post("a list", "", "[]"),
		post("an empty object", "", "{}"),
		post("a number", "", "7"),
		post("half an object", "", `{"kind":`),
		post("of another kind", "",
			`{"kind":"Nonsense","apiVersion":"`+k.gvr.GroupVersion().String()+`","metadata":{"name":"x"}}`),
		post("of another version", "", `{"kind":"`+k.resource.Kind+`","apiVersion":"nonsense/v1","metadata":{"name":"x"}}`),
		post("without a kind", "",
			k.with(func(o *unstructured.Unstructured) { delete(o.Object, "kind"); delete(o.Object, "apiVersion") })),
		post("without a name", "", k.with(func(o *unstructured.Unstructured) { o.SetName("") })),
		post("with a bad name", "", k.with(named("Bad_Name!"))),
		post("with a slash in the name", "", k.with(named("a/b"))),
		post("with a long name", "", k.with(named(strings.Repeat("n", 300)))),
		post("with a name that is a number", "", strings.Replace(good, `"`+k.name()+`"`, "5", 1)),
		post("in another namespace", "", k.with(func(o *unstructured.Unstructured) { o.SetNamespace("elsewhere") })),
		post("with a revision", "?dryRun=All", k.with(func(o *unstructured.Unstructured) { o.SetResourceVersion("77") })),
		post("with a uid", "?dryRun=All",
			k.with(func(o *unstructured.Unstructured) { o.SetUID("11111111-2222-3333-4444-555555555555") })),
		post("with bad labels", "",
			k.with(func(o *unstructured.Unstructured) { o.SetLabels(map[string]string{"a b": "c d"}) })),
		post("with bad annotations", "",
			k.with(func(o *unstructured.Unstructured) { o.SetAnnotations(map[string]string{"a b": ""}) })),
		post("with labels of another type", "", k.with(field("text", "metadata", "labels"))),
		post("with bad finalizers", "", k.with(func(o *unstructured.Unstructured) { o.SetFinalizers([]string{"nonsense"}) })),
		post("with a bad owner", "",
			k.with(func(o *unstructured.Unstructured) { o.SetOwnerReferences([]metav1.OwnerReference{{Kind: "Pod"}}) })),
		post("with an owner twice", "?dryRun=All", k.with(func(o *unstructured.Unstructured) {
			owner := metav1.OwnerReference{APIVersion: "v1", Kind: "Pod", Name: "p", UID: "11111111-2222-3333-4444-555555555555"}
			o.SetOwnerReferences([]metav1.OwnerReference{owner, owner})
		})),
		post("with bad managed fields", "?dryRun=All",
			k.with(field([]any{map[string]any{"manager": "m", "operation": "Nonsense"}}, "metadata", "managedFields"))),
		post("with a deletion time", "?dryRun=All", k.with(field("2020-01-01T00:00:00Z", "metadata", "deletionTimestamp"))),
		post("with a bad time", "", k.with(field("yesterday", "metadata", "creationTimestamp"))),
		post("with an unknown field, strictly", "?fieldValidation=Strict&dryRun=All",
			k.with(field("x", "nonsense"), field("x", "metadata", "nonsense"))),
		post("with an unknown field, warning", "?fieldValidation=Warn&dryRun=All",
			k.with(field("x", "nonsense"), field("x", "metadata", "nonsense"))),
		post("with an unknown field, by default", "?dryRun=All", k.with(field("x", "nonsense"))),
		post("with an unknown field, ignoring", "?fieldValidation=Ignore&dryRun=All", k.with(field("x", "nonsense"))),
		post("with a field twice, strictly", "?fieldValidation=Strict&dryRun=All",
			strings.Replace(good, `"metadata":{`, `"kind":"`+k.resource.Kind+`","metadata":{"name":"twice",`, 1)),
		post("with a field twice", "?dryRun=All", strings.Replace(good, `"metadata":{`, `"metadata":{"name":"twice",`, 1)),
		post("with bad validation", "?fieldValidation=Nonsense", good),
		post("with a bad dry run", "?dryRun=Some", good),
		post("with an empty dry run", "?dryRun=", "{}"),
		post("with a long manager", "?fieldManager="+strings.Repeat("m", 200), good),
		post("with an unprintable manager", "?fieldManager=%07", good),
		post("with a bad timeout", "?timeout=never", good),
		post("dry", "?dryRun=All&fieldManager=m", good),
		post("dry, twice", "?dryRun=All&dryRun=All", good),
		post("generated, dry", "?dryRun=All", generated),
		post("as text", "", good, "Content-Type", "text/plain"),
		post("as a form", "", good, "Content-Type", "application/x-www-form-urlencoded"),
		post("without a type", "?dryRun=All", good, "Content-Type", ""),
		post("of a bad type", "", good, "Content-Type", ";;;"),
		post("with a charset", "?dryRun=All", good, "Content-Type", "application/json; charset=utf-8"),
		post("as YAML", "?dryRun=All", good, "Content-Type", yamlType),
		post("as bad YAML", "", "a: [", "Content-Type", yamlType),
		post("as YAML of a list", "", "- a", "Content-Type", yamlType),
		post("as protobuf that is none", "", good, "Content-Type", protoType),
		post("as broken protobuf", "", "k8s\x00\xff\xff\xff", "Content-Type", protoType),
		post("as CBOR", "", "\xd9\xd9\xf7\xa0", "Content-Type", cborType),
		post("for protobuf", "?dryRun=All", good, "Accept", protoType),
		post("for YAML", "?dryRun=All", good, "Accept", yamlType),
		post("for CBOR", "?dryRun=All", good, "Accept", cborType),
		post("for a table", "?dryRun=All", good, "Accept", "application/json;as=Table;v=v1;g=meta.k8s.io"),
		post("for metadata", "?dryRun=All", good, "Accept", "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"),
		post("for HTML", "", good, "Accept", "text/html"),
		{"put, missing", "PUT", k.object(k.name() + "-none"), k.with(named(k.name() + "-none")), nil},
		{
			"put, missing, with a uid",
			"PUT",
			k.object(k.name() + "-none"),
			k.with(named(k.name()+"-none"), field("11111111-2222-3333-4444-555555555555", "metadata", "uid")),
			[]string{"Content-Type", jsonType},
		},
		{
			"put, missing, with a revision",
			"PUT",
			k.object("other-none") + "?dryRun=All",
			k.with(named("other-none"), field("5", "metadata", "resourceVersion")),
			[]string{"Content-Type", jsonType},
		},
		{"get, missing", "GET", k.object("none"), "", nil},
		{"delete, missing", "DELETE", k.object("none"), "", nil},
		{"patch, missing", "PATCH", k.object("none"), `{}`, []string{"Content-Type", merge}},
		{"apply, missing, without a manager", "PATCH", k.object("none"), `{}`, []string{"Content-Type", apply}},
		{"apply, dry", "PATCH", k.object(k.name()) + "?fieldManager=m&dryRun=All", good, []string{"Content-Type", apply}},
		post("it", "?fieldManager=creator", good),
		post("it again", "", good),
		post("it again, dry", "?dryRun=All", good),
	}
	return all
}

// manyReads is how many of the last reads combine the options of lists.
const manyReads = 6*4*3 - 4

func (k *subject) reads() []exchange {
	c, o := k.collection(), k.object(k.name())
	get := func(what, path string, header ...string) exchange {
		return exchange{what, "GET", path, "", header}
	}
	all := []exchange{
		get("get", o),
		get("get, pretty", o+"?pretty=true"),
		get("get from the cache", o+"?resourceVersion=0"),
		get("get at its revision", o+"?resourceVersion=$RV"),
		get("get at a bad revision", o+"?resourceVersion=x"),
		get("get at a negative revision", o+"?resourceVersion=-1"),
		get("get at a late revision", o+"?resourceVersion=99999999"),
		get("get with a bad name", k.object("a%25b")),
		get("get with a dot", k.object("..%2f")),
		get("get more", o+"/nonsense"),
		get("get more yet", o+"/status/nonsense"),
		get("get with a slash", o+"/"),
		get("list with a slash", c+"/"),
		get("get for protobuf", o, "Accept", protoType),
		get("get for YAML", o, "Accept", yamlType),
		get("get for CBOR", o, "Accept", cborType),
		get("get for CBOR or JSON", o, "Accept", cborType+","+jsonType),
		get("get for anything", o, "Accept", "*/*"),
		get("get for text", o, "Accept", "text/plain"),
		get("get for application/*", o, "Accept", "application/*"),
		get("get for nonsense", o, "Accept", "nonsense"),
		get("get a table", o, "Accept", "application/json;as=Table;v=v1;g=meta.k8s.io"),
		get("get a table with the object", o+"?includeObject=Object", "Accept",
			"application/json;as=Table;v=v1;g=meta.k8s.io"),
		get("get a table with nothing", o+"?includeObject=None", "Accept", "application/json;as=Table;v=v1;g=meta.k8s.io"),
		get("get a table with nonsense", o+"?includeObject=Nonsense", "Accept",
			"application/json;as=Table;v=v1;g=meta.k8s.io"),
		get("get a table of v1beta1", o, "Accept", "application/json;as=Table;v=v1beta1;g=meta.k8s.io"),
		get("get a table of v2", o, "Accept", "application/json;as=Table;v=v2;g=meta.k8s.io"),
		get("get a table or an object", o, "Accept", "application/json;as=Table;v=v2;g=meta.k8s.io,application/json"),
		get("get a table in protobuf", o, "Accept", protoType+";as=Table;v=v1;g=meta.k8s.io"),
		get("get metadata", o, "Accept", "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"),
		get("get metadata in protobuf", o, "Accept", protoType+";as=PartialObjectMetadata;v=v1;g=meta.k8s.io"),
		get("get metadata of a list", o, "Accept", "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"),
		get("list metadata", c+k.mine(""), "Accept", "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"),
		get("list metadata of an object", c, "Accept", "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"),
		get("list a table", c+k.mine(""), "Accept", "application/json;as=Table;v=v1;g=meta.k8s.io"),
		get("list for protobuf", c+k.mine(""), "Accept", protoType),
		get("list for YAML", c+k.mine(""), "Accept", yamlType),
		get("list for text", c, "Accept", "text/plain"),
		get("list", c+k.mine("")),
		get("list in a missing namespace", strings.Replace(c, "/"+space+"/", "/no-such-namespace/", 1)+k.mine("")),
		get("list everywhere", k.root()+"/"+k.gvr.Resource+"?labelSelector="+chosen),
		get("list by a bad label", c+"?labelSelector="+url.QueryEscape("a in (")),
		get("list by a bad field", c+"?fieldSelector=spec.nonsense%3Dx"),
		get("list by half a field", c+"?fieldSelector=nonsense"),
		get("list by name", c+k.mine("fieldSelector=metadata.name%3D"+k.name())),
		get("list by another name", c+k.mine("fieldSelector=metadata.name!%3D"+k.name())),
		get("list by namespace", c+k.mine("fieldSelector=metadata.namespace%3D"+space)),
		get("list by no namespace", c+k.mine("fieldSelector=metadata.namespace%3D")),
		get("list by phase", c+k.mine("fieldSelector=status.phase%3Dx")),
		get("list with a bad limit", c+"?limit=x"),
		get("list with a negative limit", c+k.mine("limit=-1")),
		get("list with a bad continue", c+"?limit=1&continue=nonsense"),
		get("list with a bad timeout", c+"?timeoutSeconds=x"),
		get("list with initial events", c+"?sendInitialEvents=true"),
		get("list with bookmarks", c+k.mine("allowWatchBookmarks=true")),
		get("list with a bad watch", c+"?timeoutSeconds=1&watch=maybe"),
		{"head", "HEAD", o, "", nil},
		{"head of the list", "HEAD", c, "", nil},
		{"options", "OPTIONS", o, "", nil},
		{"options of the list", "OPTIONS", c, "", nil},
		{"trace", "TRACE", o, "", nil},
		{"connect", "NONSENSE", o, "", nil},
		{"put on the list", "PUT", c, k.with(), []string{"Content-Type", jsonType}},
		{"patch on the list", "PATCH", c, "{}", []string{"Content-Type", merge}},
		{"post on the object", "POST", o, k.with(), []string{"Content-Type", jsonType}},
	}
	for _, rv := range []string{"", "0", "1", "$RV", "x", "99999999"} {
		for _, match := range []string{"", "Exact", "NotOlderThan", "Nonsense"} {
			for _, rest := range []string{"", "&limit=1", "&limit=1&continue=$CONTINUE"} {
				if rv == "99999999" && (match == "" || match == "NotOlderThan") && rest != "" {
					continue // both servers wait seconds before they fail each
				}
				q := "resourceVersion=" + rv
				if match != "" {
					q += "&resourceVersionMatch=" + match
				}
				all = append(all, get("list "+q+rest, c+k.mine(q+rest)))
			}
		}
	}
	return all
}

// watches take a second each and may run concurrently.
func (k *subject) watches() []exchange {
	var all []exchange
	c := k.collection()
	watch := func(q string, header ...string) {
		all = append(all, exchange{"watch " + q, "GET", c + k.mine("watch=1&timeoutSeconds=1&"+q), "", header})
	}
	for _, rv := range []string{"", "0", "$RV", "x"} {
		for _, initial := range []string{"", "&sendInitialEvents=true", "&sendInitialEvents=false"} {
			for _, match := range []string{"", "&resourceVersionMatch=NotOlderThan", "&resourceVersionMatch=Exact"} {
				for _, bookmarks := range []string{"", "&allowWatchBookmarks=true"} {
					watch("resourceVersion=" + rv + initial + match + bookmarks)
				}
			}
		}
	}
	watch("limit=1")
	watch("continue=x")
	watch("resourceVersion=99999999")
	watch("fieldSelector=metadata.name%3D" + k.name())
	watch("fieldSelector=nonsense%3Dx")
	watch("", "Accept", "application/json;as=Table;v=v1;g=meta.k8s.io")
	watch("", "Accept", "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io")
	watch("", "Accept", "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io")
	watch("", "Accept", yamlType)
	watch("", "Accept", "application/json;stream=watch")
	watch("", "Accept", "text/plain")
	watch("", "Accept", cborType)
	watch("resourceVersion=0&allowWatchBookmarks=true", "Accept", "application/json;as=Table;v=v1;g=meta.k8s.io")
	watch("sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true", "Accept",
		"application/json;as=Table;v=v1;g=meta.k8s.io")
	watch("sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true", "Accept",
		"application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io")
	all = append(all,
		exchange{"watch the object", "GET", k.object(k.name()) + "?watch=1&timeoutSeconds=1", "", nil},
		exchange{
			"watch by path", "GET", strings.Replace(k.object(k.name()), k.root(), k.root()+"/watch", 1) + "?timeoutSeconds=1",
			"", nil,
		},
	)
	return all
}

// deletes are requests that end with the object deleted.
func (k *subject) deletes() []exchange {
	c, o := k.collection(), k.object(k.name())
	del := func(what, path, body string, header ...string) exchange {
		return exchange{"delete " + what, "DELETE", path, body, append([]string{"Content-Type", jsonType}, header...)}
	}
	options := func(rest string) string { return `{"kind":"DeleteOptions","apiVersion":"v1",` + rest + `}` }
	all := []exchange{
		{"get", "GET", o, "", nil},
		del("with half a body", o, "{"),
		del("with a list", o, "[]"),
		del("with another kind", o, `{"kind":"Pod","apiVersion":"v1"}`),
		del("with another version", o, `{"kind":"DeleteOptions","apiVersion":"nonsense/v7","dryRun":["All"]}`),
		del("with an unknown field", o, options(`"nonsense":1,"dryRun":["All"]`)),
		del("with bad propagation", o, options(`"propagationPolicy":"Nonsense"`)),
		del("with both orphans and propagation", o, options(`"propagationPolicy":"Orphan","orphanDependents":true`)),
		del("with bad dry run", o, options(`"dryRun":["x"]`)),
		del("with a bad query", o+"?dryRun=x", ""),
		del("with a query and a body", o+"?dryRun=x", options(`"dryRun":["All"]`)),
		del("with a negative grace", o, options(`"gracePeriodSeconds":-5,"dryRun":["All"]`)),
		del("with a bad grace", o, options(`"gracePeriodSeconds":"x"`)),
		del("with a bad grace in the query", o+"?gracePeriodSeconds=x", ""),
		del("with another uid", o, options(`"preconditions":{"uid":"11111111-2222-3333-4444-555555555555"}`)),
		del("with another revision", o, options(`"preconditions":{"resourceVersion":"1"}`)),
		del("with its uid, dry", o, options(`"preconditions":{"uid":"$UID"},"dryRun":["All"]`)),
		del("of a broken object", o+"?ignoreStoreReadErrorWithClusterBreakingPotential=true", ""),
		del("dry", o+"?dryRun=All", ""),
		del("dry, in the background", o+"?dryRun=All&propagationPolicy=Background", ""),
		del("dry, in the foreground", o+"?dryRun=All&propagationPolicy=Foreground", ""),
		del("dry, orphaning", o+"?dryRun=All&orphanDependents=true", ""),
		del("dry, not orphaning", o+"?dryRun=All&orphanDependents=false", ""),
		del("as YAML", o, "kind: DeleteOptions\napiVersion: v1\ndryRun: [All]\n", "Content-Type", yamlType),
		del("as text", o, options(`"dryRun":["All"]`), "Content-Type", "text/plain"),
		del("for a table", o+"?dryRun=All", "", "Accept", "application/json;as=Table;v=v1;g=meta.k8s.io"),
		del("for metadata", o+"?dryRun=All", "", "Accept", "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"),
		del("for protobuf", o+"?dryRun=All", "", "Accept", protoType),
		del("for text", o, "", "Accept", "text/plain"),
		del("all, of a bad label", c+"?labelSelector=%28", ""),
		del("all, of a bad field", c+"?fieldSelector=nonsense%3Dx", ""),
		del("all, with bad options", c+k.mine(""), options(`"propagationPolicy":"Nonsense"`)),
		del("all, with a bad continue", c+k.mine("continue=x"), ""),
		del("all, at a revision", c+k.mine("resourceVersion=0&dryRun=All"), ""),
		del("all, at an exact revision without one", c+k.mine("resourceVersionMatch=Exact"), ""),
		del("all, of a broken store", c+k.mine("ignoreStoreReadErrorWithClusterBreakingPotential=true"), ""),
		del("all, of none", c+"?labelSelector=none%3Dnone", ""),
		del("all, dry", c+k.mine("dryRun=All"), ""),
		del("all, dry, limited", c+k.mine("dryRun=All&limit=1"), ""),
		del("all, dry, for metadata", c+k.mine("dryRun=All"), "", "Accept",
			"application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"),
		{"hold it", "PATCH", o, `{"metadata":{"finalizers":["example.com/held"]}}`, []string{"Content-Type", merge}},
		del("with a finalizer", o, options(`"propagationPolicy":"Foreground"`)),
		del("with a finalizer, again", o, ""),
		del("with a finalizer, not orphaning", o+"?orphanDependents=false", ""),
		{"create while it is being deleted", "POST", c, k.with(), []string{"Content-Type", jsonType}},
		{"put while it is being deleted", "PUT", o, k.with(), []string{"Content-Type", jsonType}},
		{
			"add a finalizer while it is being deleted",
			"PATCH",
			o,
			`{"metadata":{"finalizers":["example.com/held","example.com/more"]}}`,
			[]string{"Content-Type", merge},
		},
		{
			"label it while it is being deleted",
			"PATCH",
			o,
			`{"metadata":{"labels":{"late":"yes"}}}`,
			[]string{"Content-Type", merge},
		},
		{"let it go", "PATCH", o, `{"metadata":{"finalizers":null}}`, []string{"Content-Type", merge}},
		{"get after the deletion", "GET", o, "", nil},
		{"create by applying", "PATCH", o + "?fieldManager=m", k.with(), []string{"Content-Type", apply}},
		{"get its revision", "GET", o, "", nil},
		del("with all preconditions", o,
			options(`"preconditions":{"uid":"$UID","resourceVersion":"$RV"},"gracePeriodSeconds":0`)),
		{"create it for a collection", "POST", c, k.with(), []string{"Content-Type", jsonType}},
		del("all", c+k.mine("gracePeriodSeconds=0"), ""),
		{"list nothing", "GET", c + k.mine(""), "", nil},
	}
	return all
}
