package upstream_test

import (
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

func (k *subject) writes() []exchange {
	o := k.object(k.name())
	put := func(what, query, body string, header ...string) exchange {
		return exchange{"put " + what, "PUT", o + query, body, append([]string{"Content-Type", jsonType}, header...)}
	}
	patch := func(kind, what, query, body string) exchange {
		return exchange{"patch " + what, "PATCH", o + query, body, []string{"Content-Type", kind}}
	}
	revised := func(rv string) func(*unstructured.Unstructured) {
		return field(rv, "metadata", "resourceVersion")
	}
	identity := `"apiVersion":"` + k.gvr.GroupVersion().String() + `","kind":"` + k.resource.Kind + `"`
	metadata := func(rest string) string {
		return `{` + identity + `,"metadata":{"name":"` + k.name() + `"` + rest + `}}`
	}
	all := []exchange{
		{"get", "GET", o, "", nil},
		put("with nothing", "", ""),
		put("with an empty object", "", "{}"),
		put("of another kind", "", `{"kind":"Nonsense","apiVersion":"v1","metadata":{"name":"`+k.name()+`"}}`),
		put("under another name", "", k.with(named("other"))),
		put("without a name", "", k.with(named(""))),
		put("in another namespace", "", k.with(field("elsewhere", "metadata", "namespace"))),
		put("with a bad revision", "", k.with(revised("x"))),
		put("with a negative revision", "", k.with(revised("-1"))),
		put("with revision 0", "?dryRun=All", k.with(revised("0"))),
		put("with an old revision", "", k.with(revised("1"))),
		put("with another uid", "", k.with(revised("$RV"), field("11111111-2222-3333-4444-555555555555", "metadata", "uid"))),
		put("with another uid and no revision", "", k.with(field("11111111-2222-3333-4444-555555555555", "metadata", "uid"))),
		put("without a revision, dry", "?dryRun=All", k.with()),
		put("dry", "?dryRun=All&fieldManager=m", k.with(revised("$RV"), field("b", "metadata", "annotations", "a"))),
		put("with unknown fields, strictly", "?fieldValidation=Strict", k.with(revised("$RV"), field("b", "nonsense"))),
		put("with unknown fields", "?dryRun=All", k.with(revised("$RV"), field("b", "nonsense"))),
		put("with another creation time", "?dryRun=All",
			k.with(revised("$RV"), field("2020-01-01T00:00:00Z", "metadata", "creationTimestamp"))),
		put("with a deletion time", "?dryRun=All",
			k.with(revised("$RV"), field("2020-01-01T00:00:00Z", "metadata", "deletionTimestamp"))),
		put("with another generation", "?dryRun=All", k.with(revised("$RV"), field(int64(50), "metadata", "generation"))),
		put("with a bad query", "?dryRun=x", k.with()),
		put("as text", "", k.with(), "Content-Type", "text/plain"),
		put("unchanged", "?fieldManager=creator", k.with(revised("$RV"))),
		put("with an annotation", "?fieldManager=updater",
			k.with(revised("$RV"), field("b", "metadata", "annotations", "a"))),
		patch(merge, "with nothing", "", ""),
		patch(merge, "with null", "", "null"),
		patch(merge, "with a list", "", "[]"),
		patch(merge, "with half an object", "", "{"),
		patch(merge, "without changes", "", "{}"),
		patch(merge, "of the name", "", `{"metadata":{"name":"other"}}`),
		patch(merge, "without a name", "", `{"metadata":{"name":null}}`),
		patch(merge, "of the namespace", "", `{"metadata":{"namespace":"other"}}`),
		patch(merge, "of the uid", "", `{"metadata":{"uid":"11111111-2222-3333-4444-555555555555"}}`),
		patch(merge, "of the revision", "", `{"metadata":{"resourceVersion":"1"}}`),
		patch(merge, "with a bad revision", "", `{"metadata":{"resourceVersion":"x"}}`),
		patch(merge, "with a revision that is a number", "", `{"metadata":{"resourceVersion":1}}`),
		patch(merge, "of the kind", "", `{"kind":"Nonsense"}`),
		patch(merge, "of the version", "", `{"apiVersion":"v7"}`),
		patch(merge, "with an unknown field", "?dryRun=All", `{"nonsense":1}`),
		patch(merge, "with an unknown field, strictly", "?fieldValidation=Strict",
			`{"nonsense":1,"metadata":{"nonsense":2}}`),
		patch(merge, "with a field twice, strictly", "?fieldValidation=Strict", `{"metadata":{"labels":{"a":"b","a":"c"}}}`),
		patch(merge, "with a field twice", "?dryRun=All", `{"metadata":{"labels":{"a":"b","a":"c"}}}`),
		patch(merge, "of labels with a text", "", `{"metadata":{"labels":"x"}}`),
		patch(merge, "of labels with a number", "", `{"metadata":{"labels":{"a":1}}}`),
		patch(merge, "of labels", "?fieldManager=patcher", `{"metadata":{"labels":{"merged":"yes"}}}`),
		patch(merge, "with force", "?force=true", `{}`),
		patch(merge, "with a bad dry run", "?dryRun=x", `{}`),
		patch(merge, "with a deletion time", "?dryRun=All", `{"metadata":{"deletionTimestamp":"2020-01-01T00:00:00Z"}}`),
		patch(merge, "of managed fields", "?dryRun=All", `{"metadata":{"managedFields":[{}]}}`),
		patch(merge, "of managed fields with null", "?dryRun=All", `{"metadata":{"managedFields":null}}`),
		patch(merge, "of managed fields with nonsense", "?dryRun=All",
			`{"metadata":{"managedFields":[{"manager":"m","operation":"Update","apiVersion":"x/y/z","fieldsType":"FieldsV1","fieldsV1":{"f:a":{}}}]}}`),
		patch(strategic, "of labels, strategic", "?fieldManager=patcher", `{"metadata":{"labels":{"strategic":"yes"}}}`),
		patch(strategic, "with nothing, strategic", "", ``),
		patch(strategic, "with a list, strategic", "", `[]`),
		patch(strategic, "with an unknown field, strategic", "?fieldValidation=Strict", `{"nonsense":1}`),
		patch(strategic, "with a bad directive", "", `{"metadata":{"$patch":"nonsense"}}`),
		patch(strategic, "that replaces metadata", "?dryRun=All", `{"metadata":{"$patch":"replace","name":"`+k.name()+`"}}`),
		patch(strategic, "of finalizers", "?dryRun=All", `{"metadata":{"$deleteFromPrimitiveList/finalizers":["a/b"]}}`),
		patch(strategic, "of the uid, strategic", "", `{"metadata":{"uid":"11111111-2222-3333-4444-555555555555"}}`),
		patch(operations, "with nothing, operations", "", ""),
		patch(operations, "with an object, operations", "", "{}"),
		patch(operations, "with no operations", "", "[]"),
		patch(operations, "with an unknown operation", "", `[{"op":"nonsense","path":"/a"}]`),
		patch(operations, "with a missing path", "", `[{"op":"remove","path":"/a/b/c"}]`),
		patch(operations, "with a path without a slash", "", `[{"op":"add","path":"a","value":1}]`),
		patch(operations, "with a failing test", "", `[{"op":"test","path":"/metadata/name","value":"x"}]`),
		patch(operations, "with a test of the whole", "", `[{"op":"test","path":"","value":{}}]`),
		patch(operations, "with a good test", "?dryRun=All",
			`[{"op":"test","path":"/metadata/name","value":"`+k.name()+
				`"},{"op":"add","path":"/metadata/labels/tested","value":"yes"}]`),
		patch(operations, "that replaces the whole", "", `[{"op":"replace","path":"","value":{}}]`),
		patch(operations, "that copies", "?dryRun=All",
			`[{"op":"copy","from":"/metadata/name","path":"/metadata/labels/copied"}]`),
		patch(operations, "that moves the name", "",
			`[{"op":"move","from":"/metadata/name","path":"/metadata/labels/moved"}]`),
		patch(operations, "with an unknown member", "?fieldValidation=Strict",
			`[{"op":"add","path":"/metadata/labels/x","value":"y","nonsense":1}]`),
		patch(operations, "of a label", "?fieldManager=patcher",
			`[{"op":"add","path":"/metadata/labels/operated","value":"yes"}]`),
		patch("text/plain", "as text", "", `{}`),
		patch("", "without a type", "", `{}`),
		patch(jsonType, "as JSON", "", `{}`),
		patch("application/apply-patch+cbor", "as applied CBOR", "?fieldManager=m", "\xa0"),
		patch(merge+"; charset=utf-8", "with a charset", "?dryRun=All", `{}`),
		patch(apply, "applied without a manager", "", metadata("")),
		patch(apply, "applied with nothing", "?fieldManager=m", ""),
		patch(apply, "applied with an empty object", "?fieldManager=m", "{}"),
		patch(apply, "applied with a list", "?fieldManager=m", "[]"),
		patch(apply, "applied with bad YAML", "?fieldManager=m", "a: ["),
		patch(apply, "applied under another name", "?fieldManager=m", `{`+identity+`,"metadata":{"name":"other"}}`),
		patch(apply, "applied without a name", "?fieldManager=m", `{`+identity+`}`),
		patch(apply, "applied of another kind", "?fieldManager=m",
			`{"apiVersion":"v1","kind":"Nonsense","metadata":{"name":"`+k.name()+`"}}`),
		patch(apply, "applied of another version", "?fieldManager=m",
			`{"apiVersion":"nonsense/v1","kind":"`+k.resource.Kind+`","metadata":{"name":"`+k.name()+`"}}`),
		patch(apply, "applied with managed fields", "?fieldManager=m", metadata(`,"managedFields":[{"manager":"x"}]`)),
		patch(apply, "applied with an old revision", "?fieldManager=m", metadata(`,"resourceVersion":"1"`)),
		patch(apply, "applied with another uid", "?fieldManager=m",
			metadata(`,"uid":"11111111-2222-3333-4444-555555555555"`)),
		patch(apply, "applied with a label", "?fieldManager=m", metadata(`,"labels":{"applied":"yes"}`)),
		patch(apply, "applied with a conflict", "?fieldManager=m", metadata(`,"labels":{"merged":"no"}`)),
		patch(apply, "applied with force", "?fieldManager=m&force=true", metadata(`,"labels":{"merged":"no"}`)),
		patch(apply, "applied with bad force", "?fieldManager=m&force=maybe", metadata("")),
		patch(apply, "applied with unknown fields, strictly", "?fieldManager=m&fieldValidation=Strict",
			strings.TrimSuffix(metadata(""), "}")+`,"nonsense":1}`),
		patch(apply, "applied with unknown fields", "?fieldManager=m&dryRun=All",
			strings.TrimSuffix(metadata(""), "}")+`,"nonsense":1}`),
		patch(apply, "applied with a field twice", "?fieldManager=m&dryRun=All&fieldValidation=Strict",
			metadata(`,"labels":{"a":"b","a":"c"}`)),
		patch(apply, "applied without labels", "?fieldManager=m", metadata("")),
		{"get, after it", "GET", o, "", nil},
	}
	for _, sub := range k.subs {
		_, name, _ := strings.Cut(sub.Name, "/")
		at := o + "/" + name
		if name != "status" && name != "scale" && name != "approval" && name != "ephemeralcontainers" && name != "resize" &&
			name != "finalize" {
			continue // scenarios cover these
		}
		for _, x := range []exchange{
			{"get", "GET", at, "", nil},
			{"get a table", "GET", at, "", []string{"Accept", "application/json;as=Table;v=v1;g=meta.k8s.io"}},
			{"get metadata", "GET", at, "", []string{"Accept", "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"}},
			{"get for protobuf", "GET", at, "", []string{"Accept", protoType}},
			{"get, missing", "GET", k.object("none") + "/" + name, "", nil},
			{"head", "HEAD", at, "", nil},
			{"delete", "DELETE", at, "", nil},
			{"post", "POST", at, k.with(), []string{"Content-Type", jsonType}},
			{"put nothing", "PUT", at, "", []string{"Content-Type", jsonType}},
			{"put an empty object", "PUT", at, "{}", []string{"Content-Type", jsonType}},
			{"put, missing", "PUT", k.object("none") + "/" + name, k.with(named("none")), []string{"Content-Type", jsonType}},
			{"put an old one", "PUT", at, k.with(revised("1")), []string{"Content-Type", jsonType}},
			{"put a bad revision", "PUT", at, k.with(revised("x")), []string{"Content-Type", jsonType}},
			{"put the stub", "PUT", at + "?dryRun=All", k.with(), []string{"Content-Type", jsonType}},
			{"put another name", "PUT", at, k.with(named("other")), []string{"Content-Type", jsonType}},
			{"merge nothing", "PATCH", at, "{}", []string{"Content-Type", merge}},
			{
				"merge a label",
				"PATCH",
				at + "?dryRun=All",
				`{"metadata":{"labels":{"by":"status"}}}`,
				[]string{"Content-Type", merge},
			},
			{
				"merge nonsense",
				"PATCH",
				at + "?fieldValidation=Strict",
				`{"status":{"nonsense":1}}`,
				[]string{"Content-Type", merge},
			},
			{"merge a bad status", "PATCH", at, `{"status":"text"}`, []string{"Content-Type", merge}},
			{"merge an empty status", "PATCH", at + "?dryRun=All", `{"status":null}`, []string{"Content-Type", merge}},
			{"apply", "PATCH", at + "?fieldManager=m&dryRun=All", metadata(""), []string{"Content-Type", apply}},
			{
				"apply a label",
				"PATCH",
				at + "?fieldManager=m&dryRun=All",
				metadata(`,"labels":{"by":"status"}`),
				[]string{"Content-Type", apply},
			},
			{
				"patch with operations",
				"PATCH",
				at,
				`[{"op":"test","path":"/metadata/name","value":"x"}]`,
				[]string{"Content-Type", operations},
			},
			{"watch", "GET", at + "?watch=1&timeoutSeconds=1", "", nil},
		} {
			x.what = name + ": " + x.what
			all = append(all, x)
		}
	}
	return all
}
