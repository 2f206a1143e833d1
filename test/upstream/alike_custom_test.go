package upstream_test

import "strings"

const boatsPath = "/apis/harbour.example.com/v1/namespaces/" + space + "/boats"

var newerBoats = strings.Replace(boatsPath, "/v1/", "/v2/", 1)

func boat(version, name, rest string) string {
	return `{"apiVersion":"harbour.example.com/` + version + `","kind":"Boat","metadata":{"name":"` + name + `"}` + rest +
		`}`
}

// versions are requests that write custom resources in one version and read them in the other.
func versions() []exchange {
	j := []string{"Content-Type", jsonType}
	return []exchange{
		{"create in the second", "POST", newerBoats, boat("v2", "second", `,"spec":{"colour":"red"}`), j},
		{"get in the second", "GET", newerBoats + "/second", "", nil},
		{"get in the first", "GET", boatsPath + "/second", "", nil},
		{"create in the first", "POST", boatsPath, boat("v1", "first", `,"spec":{"colour":"red","sails":[{}]}`), j},
		{"get the first in the second", "GET", newerBoats + "/first", "", nil},
		{"get the first in the first", "GET", boatsPath + "/first", "", nil},
		{"list in the second", "GET", newerBoats, "", nil},
		{"list in the first", "GET", boatsPath, "", nil},
		{
			"create in the second what the first refuses", "POST", newerBoats,
			boat("v2", "black", `,"spec":{"colour":"black","kind":"raft","length":0}`), j,
		},
		{"create in the second without a spec", "POST", newerBoats, boat("v2", "bare", ``), j},
		{"get that in the first", "GET", boatsPath + "/bare", "", nil},
		{"get that in the second", "GET", newerBoats + "/bare", "", nil},
		{
			"create in the second, dry", "POST", newerBoats + "?dryRun=All",
			boat("v2", "dry", `,"spec":{"sails":[{},{"area":2}]}`), j,
		},
		{"update in the second", "PUT", newerBoats + "/second", boat("v2", "second", `,"spec":{"colour":"blue"}`), j},
		{
			"label in the second",
			"PATCH",
			newerBoats + "/second",
			`{"metadata":{"labels":{"a":"b"}}}`,
			[]string{"Content-Type", merge},
		},
		{"get the label in the first", "GET", boatsPath + "/second", "", nil},
		{
			"merge in the second",
			"PATCH",
			newerBoats + "/second",
			`{"spec":{"sails":[{}],"first":null,"second":null}}`,
			[]string{"Content-Type", merge},
		},
		{
			"merge in the first",
			"PATCH",
			boatsPath + "/second",
			`{"spec":{"first":null,"second":null,"crew":null}}`,
			[]string{"Content-Type", merge},
		},
		{"get that in the second again", "GET", newerBoats + "/second", "", nil},
		{
			"apply in the second",
			"PATCH",
			newerBoats + "/applied?fieldManager=m",
			boat("v2", "applied", `,"spec":{"colour":"green"}`),
			[]string{"Content-Type", apply},
		},
		{
			"apply in the first",
			"PATCH",
			boatsPath + "/applied?fieldManager=n",
			boat("v1", "applied", `,"spec":{"kind":"ketch"}`),
			[]string{"Content-Type", apply},
		},
		{
			"apply in the first with a conflict",
			"PATCH",
			boatsPath + "/applied?fieldManager=o",
			boat("v1", "applied", `,"spec":{"colour":"white"}`),
			[]string{"Content-Type", apply},
		},
		{
			"apply in the second again",
			"PATCH",
			newerBoats + "/applied?fieldManager=m",
			boat("v2", "applied", `,"spec":{"length":4}`),
			[]string{"Content-Type", apply},
		},
		{
			"status in the second",
			"PATCH",
			newerBoats + "/second/status",
			`{"status":{"crew":3,"more":1}}`,
			[]string{"Content-Type", merge},
		},
		{"that status in the first", "GET", boatsPath + "/second", "", nil},
		{
			"status in the first",
			"PATCH",
			boatsPath + "/second/status",
			`{"status":{"crew":4,"more":1}}`,
			[]string{"Content-Type", merge},
		},
		{"delete in the second", "DELETE", newerBoats + "/second", "", nil},
		{"watch in the second", "GET", newerBoats + "?watch=1&timeoutSeconds=1&resourceVersion=0", "", nil},
		{"delete all in the second", "DELETE", newerBoats, "", nil},
	}
}

func invalidBoats() (all []exchange) {
	for what, rest := range map[string]string{
		"no spec": ``, "a text for spec": `,"spec":"x"`, "null spec": `,"spec":null`,
		"a long colour":       `,"spec":{"colour":"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"}`,
		"a number for colour": `,"spec":{"colour":5}`,
		"black":               `,"spec":{"colour":"black"}`, "no length": `,"spec":{"length":0}`,
		"a text for length": `,"spec":{"length":"x"}`, "half a length": `,"spec":{"length":1.5}`,
		"a whole float":        `,"spec":{"colour":"red","length":2.0}`,
		"another kind of boat": `,"spec":{"kind":"raft"}`, "sails of texts": `,"spec":{"sails":["x"]}`,
		"null colour": `,"spec":{"colour":null}`, "null length": `,"spec":{"length":null}`,
		"a large length":   `,"spec":{"length":99999999999999999999}`,
		"an unknown field": `,"spec":{"colour":"red","nonsense":{"deep":1}}`,
		"a status":         `,"spec":{"colour":"red"},"status":{"crew":5}`,
		"a bad status":     `,"spec":{"colour":"red"},"status":{"crew":"x"}`,
	} {
		for _, v := range []string{"Strict", "Warn", "Ignore"} {
			all = append(all, exchange{
				what + ", " + v,
				"POST",
				boatsPath + "?dryRun=All&fieldValidation=" + v,
				boat("v1", "invalid", rest),
				[]string{"Content-Type", jsonType},
			})
		}
	}
	return all
}

// definition returns a CustomResourceDefinition of moorings with other parts of its spec.
func definition(spec string) string {
	return `{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"moorings.harbour.example.com"},"spec":{"group":"harbour.example.com","scope":"Namespaced","names":{"plural":"moorings","kind":"Mooring"}` + spec + `}}`
}

func definitions() (all []exchange) {
	version := func(schema string) string {
		return `,"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":` + schema + `}}]`
	}
	for what, spec := range map[string]string{
		"no versions": ``, "empty versions": `,"versions":[]`,
		"no schema":      `,"versions":[{"name":"v1","served":true,"storage":true}]`,
		"no storage":     `,"versions":[{"name":"v1","served":true,"storage":false,"schema":{"openAPIV3Schema":{"type":"object"}}}]`,
		"not structural": version(`{"properties":{"a":{}}}`), "a bad type": version(`{"type":"nonsense"}`),
		"a bad rule":    version(`{"type":"object","x-kubernetes-validations":[{"rule":"self.a =="}]}`),
		"a bad default": version(`{"type":"object","properties":{"a":{"type":"integer","default":"x"}}}`),
		"a bad pattern": version(`{"type":"object","properties":{"a":{"type":"string","pattern":"("}}}`),
		"a bad version": `,"versions":[{"name":"1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object"}}}]`, "a bad column": `,"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object"}},"additionalPrinterColumns":[{"name":"x","type":"nonsense","jsonPath":"a"}]}]`,
		"two storage versions": `,"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object"}}},{"name":"v2","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object"}}}]`,
		"a list map without keys": version(
			`{"type":"object","properties":{"a":{"type":"array","x-kubernetes-list-type":"map","items":{"type":"object"}}}}`),
		"a costly rule": version(
			`{"type":"object","properties":{"a":{"type":"array","items":{"type":"string","x-kubernetes-validations":[{"rule":"self.matches('.*')"}]}}}}`),
		"preserved fields":           `,"preserveUnknownFields":true` + version(`{"type":"object"}`),
		"a webhook without a client": `,"conversion":{"strategy":"Webhook"}` + version(`{"type":"object"}`),
		"good":                       version(`{"type":"object","x-kubernetes-preserve-unknown-fields":true}`),
		"metadata with rules": version(
			`{"type":"object","properties":{"metadata":{"type":"object","properties":{"name":{"type":"string","pattern":"a"},"labels":{"type":"object"}}}}}`),
	} {
		all = append(all, exchange{
			what,
			"POST",
			"/apis/apiextensions.k8s.io/v1/customresourcedefinitions?dryRun=All",
			definition(spec),
			[]string{"Content-Type", jsonType},
		})
	}
	return all
}
