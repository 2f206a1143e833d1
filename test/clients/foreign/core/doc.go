// Package core is the place of the client of api/v1, which the test generates.
package core

import (
	_ "github.com/oapi-codegen/runtime" // the generated client uses it
	_ "go.yaml.in/yaml/v3"
)
